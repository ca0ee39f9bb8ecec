// SPDX-License-Identifier: Apache-2.0
//
// What making, mapping and giving up an arena costs, in a process that is idle and in one whose kernel runs,
// and whether another process that copies meanwhile feels it.
#include <algorithm>
#include <vector>

#include "worker.h"

namespace pinfeed {
namespace {

constexpr int kRounds = 10;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Run(Report* report, Backend backend, std::size_t bytes) {
  const std::string scenario =
      std::string(BackendName(backend)) + ", " + std::to_string(bytes >> 20) + " MiB";
  Worker daemon;
  Worker client;
  Worker other;
  const auto make = [&](bool busy, int* fd) {
    const Answer made = daemon.Call(
        {.op = Op::kExport, .bytes = bytes, .seed = 1, .flag = busy, .offer = {backend, 0, {}}}, -1, fd);
    CU(made.result);
    return made;
  };
  other.Post({.op = Op::kCopyFor, .bytes = 500'000'000});
  const auto quiet = other.Await(10);
  other.Post({.op = Op::kCopyFor, .bytes = 4'000'000'000});
  std::vector<double> times[4];
  const auto round = [&](bool busy) {
    int fd = -1;
    const Answer made = make(busy, &fd);
    const Answer opened = client.Call({.op = Op::kImport, .flag = true, .offer = made.offer}, fd);
    CU(opened.result);
    if (fd >= 0) close(fd);
    const Answer closed = client.Call({.op = Op::kDrop, .flag = busy});
    const Answer freed = daemon.Call({.op = Op::kDrop, .flag = busy});
    CU(closed.result);
    CU(freed.result);
    return std::vector<double>{made.ms, opened.ms, closed.ms, freed.ms};
  };
  for (int i = 0; i < kRounds; ++i) {
    const std::vector<double> took = round(false);
    for (std::size_t step = 0; step < 4; ++step) times[step].push_back(took[step]);
  }
  const std::vector<double> busy = round(true);
  const auto disturbed = other.Await(10);
  const char* steps[] = {"daemon makes and maps", "client opens and maps", "client unmaps or closes",
                         "daemon gives up"};
  for (std::size_t step = 0; step < 4; ++step) {
    std::string seen = "median " + Number(Median(times[step]), "ms", 2);
    if (step != 1) seen += "; while its own kernel of 500 ms runs " + Number(busy[step], "ms", 2);
    if (backend == Backend::kVmmFd) {
      report->Rely(scenario, steps[step], seen, busy[step] < 100);  // does not wait for the GPU
    } else {
      report->Say(scenario, steps[step], seen);
    }
  }
  if (!quiet || !disturbed) Fail(__FILE__, __LINE__, scenario, "the copying process did not answer");
  report->Say(scenario, "longest 1 MiB copy of another process, quiet -> meanwhile",
              std::to_string(quiet->value) + " us -> " + std::to_string(disturbed->value) + " us");
}

}  // namespace
}  // namespace pinfeed

int main() {
  pinfeed::LoadKernelImage();
  pinfeed::Report report("4 arena cost");
  for (pinfeed::Backend backend : {pinfeed::Backend::kVmmFd, pinfeed::Backend::kLegacy}) {
    for (std::size_t bytes : {64ULL << 20, 4ULL << 30}) pinfeed::Run(&report, backend, bytes);
  }
  return report.ExitStatus();
}
