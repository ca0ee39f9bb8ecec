// SPDX-License-Identifier: Apache-2.0
//
// Two trainers with a ring each in one arena; one is stopped with batches in its hands. Does the other keep
// its rate, and does the stopped one find everything right when it goes on?
#include "feed.h"

namespace pinfeed {
namespace {

void Run(Report* report, Backend backend) {
  const std::string scenario = BackendName(backend);
  const FeedPlan plan{backend, 4 << 20, 60'000};
  Ring* rings[2] = {new (SharedMemory(4096)) Ring, new (SharedMemory(4096)) Ring};
  int pairs[2][2];
  for (auto& pair : pairs) SYS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
  Process feeder = Spawn({}, [&](int) { RunFeeder(plan, {pairs[0][0], pairs[1][0]}, {rings[0], rings[1]}); });
  Process trainers[2];
  for (std::size_t i = 0; i < 2; ++i)
    trainers[i] = Spawn({}, [&, i](int) { RunTrainer(plan, pairs[i][1], i, rings[i]); });
  const double patience = Now() + 20;
  while ((rings[0]->published < 100 || rings[1]->published < 100) && Now() < patience) usleep(1000);

  double rates[2];
  const auto measure = [&](double seconds) {
    const std::uint64_t before[2] = {rings[0]->published, rings[1]->published};
    const double start = Now();
    usleep(useconds_t(seconds * 1e6));
    for (int i = 0; i < 2; ++i) rates[i] = double(rings[i]->published - before[i]) / (Now() - start);
    return Number(rates[0], "and ", 0) + Number(rates[1], "batches/s", 0);
  };
  report->Say(scenario, "both run", measure(1.0));
  const double both = rates[0];
  kill(trainers[1].pid, SIGSTOP);
  usleep(100'000);
  const std::uint64_t frozen = rings[1]->published;
  std::string seen = measure(1.5);
  report->Rely(scenario, "the second is stopped", seen,
               rates[0] > 0.95 * both && rings[1]->published == frozen);
  kill(trainers[1].pid, SIGCONT);
  usleep(100'000);
  seen = measure(0.5);
  report->Rely(scenario, "it goes on", seen, rates[1] > 0);
  const bool ended = Ended(trainers[0], 30) && Ended(trainers[1], 30) && Ended(feeder, 5);
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t wrong = rings[i]->wrong_words;
    report->Rely(scenario, std::string("wrong words of the ") + (i == 0 ? "first" : "second"),
                 ended ? std::to_string(wrong) : "unfinished", ended && wrong == 0);
    Reap(&trainers[i]);
  }
  Reap(&feeder);
}

}  // namespace
}  // namespace pinfeed

int main() {
  pinfeed::LoadKernelImage();
  pinfeed::Report report("14 stopped client");
  pinfeed::Run(&report, pinfeed::Backend::kVmmFd);
  return report.ExitStatus();
}
