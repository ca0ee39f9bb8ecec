// SPDX-License-Identifier: Apache-2.0
//
// A trainer records an event that the daemon shares, behind work that does not end, and is killed. What do
// query, wait and synchronise do in the daemon, and can it still free memory and end?
#include "worker.h"

namespace pinfeed {
namespace {

constexpr double kKernelSeconds = 3.0;  // of the work that the client does not live to finish
constexpr double kWatchSeconds = 7.0;
constexpr double kPatience = 4.0;

std::string Outcome(const std::optional<Answer>& answer) {
  return answer ? CuName(answer->result) + " after " + Number(answer->ms, "ms")
                : "no answer within " + Number(kPatience, "s");
}

void Run(Report* report, bool made_by_client, bool on_stream) {
  const std::string scenario = std::string(made_by_client ? "client's event" : "daemon's event") +
                               (on_stream ? ", a stream waits for it" : ", no stream waits for it");
  Worker daemon;
  Worker client;
  Worker& maker = made_by_client ? client : daemon;
  Worker& opener = made_by_client ? daemon : client;
  Answer made = maker.Call({.op = Op::kMakeEvent});
  CU(made.result);
  CU(opener.Call({.op = Op::kOpenEvent, .event = made.event}).result);
  CU(daemon.Call({.op = Op::kAllocate, .bytes = 64 << 20}).result);
  CU(client.Call({.op = Op::kSpin, .bytes = std::uint64_t(kKernelSeconds * 1e9)}).result);
  CU(client.Call({.op = Op::kRecordEvent}).result);
  report->Say(scenario, "query before the death", CuName(daemon.Call({.op = Op::kQueryEvent}).result));
  if (on_stream) CU(daemon.Call({.op = Op::kWaitEvent}).result);
  client.Kill();
  if (!client.Over(5)) report->Say(scenario, "the client's pidfd", "not readable within 5 s");
  // Longer than the kernel would have run.
  const double start = Now();
  CUresult event = CUDA_ERROR_NOT_READY;
  CUresult stream = CUDA_ERROR_NOT_READY;
  while (event == CUDA_ERROR_NOT_READY && stream == CUDA_ERROR_NOT_READY && Now() - start < kWatchSeconds) {
    usleep(10'000);
    event = daemon.Call({.op = Op::kQueryEvent}).result;
    if (on_stream) stream = daemon.Call({.op = Op::kQuerySecond}).result;
  }
  const std::string after = " after " + Number(Now() - start, "s more");
  report->Say(scenario, "query after the death", CuName(event) + after);
  if (on_stream) report->Say(scenario, "the stream", CuName(stream) + after);
  // Each step may block for good; then the process is beyond help and the next steps cannot be asked for.
  for (auto [op, name] : {std::pair{Op::kFree, "cuMemFree"},
                          {Op::kSyncEvent, "cuEventSynchronize"},
                          {Op::kQuit, "orderly end"}}) {
    daemon.Post({.op = op});
    std::optional<Answer> answer = daemon.Await(kPatience);
    report->Say(scenario, name, Outcome(answer));
    if (!answer) break;
  }
  daemon.Kill();
  report->Say(scenario, "the daemon, killed, is gone within 5 s", daemon.Over(5) ? "yes" : "no");
}

}  // namespace
}  // namespace pinfeed

int main() {
  pinfeed::LoadKernelImage();
  pinfeed::Report report("6 dead recorder");
  pinfeed::Run(&report, true, true);
  pinfeed::Run(&report, false, true);
  pinfeed::Run(&report, true, false);
  return report.ExitStatus();
}
