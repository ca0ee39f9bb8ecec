// SPDX-License-Identifier: Apache-2.0
#include "server/pipeline/progress_check.h"

#include "common/log.h"

namespace pinfeed {
namespace {

std::string InSeconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

std::string ProgressCheck::Stuck() {
  std::string stuck = Find();
  if (!stuck.empty() && !was_stuck_) {
    spdlog::error("{}: the service manager's watchdog is not fed until this changes", stuck);
  } else if (stuck.empty() && was_stuck_) {
    spdlog::info("what was stuck moves again: the service manager's watchdog is fed");
  }
  was_stuck_ = !stuck.empty();
  return stuck;
}

std::string ProgressCheck::Find() const {
  if (limit_.count() == 0) return {};
  if (const auto longest = workers_.LongestChunk(); longest > limit_) {
    return "a worker has been at one piece of work for " + InSeconds(longest) +
           ", as when storage does not answer (stuck_timeout)";
  }
  if (!gpus_) return {};
  for (const GpuSnapshot& gpu : gpus_()) {
    if (gpu.stalled > limit_)
      return "no copy to " + gpu.uuid + " has ended for " + InSeconds(gpu.stalled) + " (stuck_timeout)";
  }
  return {};
}

}  // namespace pinfeed
