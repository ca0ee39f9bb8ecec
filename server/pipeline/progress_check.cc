// SPDX-License-Identifier: Apache-2.0
#include "server/pipeline/progress_check.h"

#include <utility>

#include "common/log.h"

namespace pinfeed {
namespace {

std::string InSeconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

std::string ProgressCheck::Stuck() {
  const std::vector<GpuSnapshot> gpus = gpus_ ? gpus_() : std::vector<GpuSnapshot>();
  uint64_t done = workers_.progress();
  for (const GpuSnapshot& gpu : gpus) done += gpu.copied_bytes + gpu.peer_bytes;
  const Clock::time_point now = Clock::now();
  if (std::exchange(done_, done) != done) moved_at_ = now;
  const std::string hung = FindHung(gpus);
  if (hung.empty()) {
    Enter(State::kWell, {});
    return {};
  }
  if (now - moved_at_ <= limit_) {
    Enter(State::kPartly, hung);
    return {};
  }
  std::string stuck = hung + ", and nothing else was done for " + InSeconds(now - moved_at_);
  Enter(State::kStuck, stuck);
  return stuck;
}

void ProgressCheck::Enter(State state, const std::string& hung) {
  if (std::exchange(state_, state) == state) return;
  switch (state) {
    case State::kWell:
      spdlog::info("what hung moves again");
      return;
    case State::kPartly:
      spdlog::error("{}; the rest gets on, so the daemon goes on", hung);
      return;
    case State::kStuck:
      spdlog::error("{}: the service manager's watchdog is not fed until this changes", hung);
      return;
  }
}

std::string ProgressCheck::FindHung(const std::vector<GpuSnapshot>& gpus) const {
  if (limit_.count() == 0) return {};
  if (const auto longest = workers_.LongestChunk(); longest > limit_) {
    return "a worker has been at one piece of work for " + InSeconds(longest) +
           ", as when storage does not answer (stuck_timeout)";
  }
  for (const GpuSnapshot& gpu : gpus) {
    if (gpu.stalled > limit_)
      return "no copy to " + gpu.uuid + " has ended for " + InSeconds(gpu.stalled) + " (stuck_timeout)";
  }
  return {};
}

}  // namespace pinfeed
