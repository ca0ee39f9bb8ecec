// SPDX-License-Identifier: Apache-2.0
//
// Complete before announce, released by a stream-ordered write: does a trainer ever see a wrong word, over a
// million hand-overs through slots that stay in the L2 cache and through large ones? A control that announces
// too early must be caught.

#include "feed.h"

namespace pinfeed {
namespace {

void Run(Report* report, const FeedPlan& plan) {
  auto* ring = new (SharedMemory(4096)) Ring;
  int ends[2];
  SYS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
  const double start = Now();
  Process feeder = Spawn({}, [&](int) { RunFeeder(plan, {ends[0]}, {ring}); });
  Process trainer = Spawn({}, [&](int) { RunTrainer(plan, ends[1], 0, ring); });
  double first = 0;
  while (!Ended(trainer, 0) && ring->published == 0) usleep(1000);
  first = Now();
  const bool ended = Ended(trainer, 55 - (first - start)) && Ended(feeder, 5);
  const double seconds = Now() - first;
  Reap(&trainer);
  Reap(&feeder);
  close(ends[0]);
  close(ends[1]);
  const std::string scenario = std::string(BackendName(plan.backend)) + ", " + std::to_string(plan.batches) +
                               " batches of " + std::to_string(plan.batch_bytes >> 10) + " KiB" +
                               (plan.announce_early ? ", announced early" : "");
  const std::uint64_t wrong = ring->wrong_words;
  const std::string seen =
      ended ? std::to_string(wrong) : "unfinished after " + std::to_string(ring->published) + " batches";
  if (plan.announce_early) {
    report->Rely(scenario, "control: wrong words are seen", seen, ended && wrong > 0);
    return;
  }
  report->Rely(scenario, "wrong words", seen, ended && wrong == 0);
  report->Say(scenario, "rate",
              Number(double(plan.batches) / seconds, "batches/s, ", 0) +
                  Number(double(plan.batches * plan.batch_bytes) / seconds * 1e-9, "GB/s"));
}

}  // namespace
}  // namespace pinfeed

int main(int argc, char** argv) {
  using pinfeed::Backend;
  if (argc != 3) {
    std::fprintf(stderr, "usage: visibility vmm-fd|cuda-ipc small|large\n");
    return 2;
  }
  pinfeed::LoadKernelImage();
  pinfeed::Report report("12 visibility");
  const Backend backend = std::string(argv[1]) == "vmm-fd" ? Backend::kVmmFd : Backend::kLegacy;
  if (std::string(argv[2]) == "small") {
    pinfeed::Run(&report, {backend, 64 << 10, 1'000'000});
  } else {
    pinfeed::Run(&report, {backend, 16 << 20, 10'000});
    pinfeed::Run(&report, {backend, 16 << 20, 1'000, true});
  }
  return report.ExitStatus();
}
