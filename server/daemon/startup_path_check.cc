// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/startup_path_check.h"

#include <exception>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "server/daemon/host_check.h"

namespace pinfeed {

StartupPathCheck::StartupPathCheck(CommandLine command_line)
    : thread_("path-check", "starting", [command_line = std::move(command_line)](const auto& at) {
        std::string step = "starting";
        const auto note = [&](const std::string& next) { at(step = next); };
        try {
          const CommandLine nothing;
          for (const std::string& warning : MissingWarnings(nothing, command_line, note))
            spdlog::warn("{}", warning);
        } catch (const std::exception& error) {
          spdlog::warn("{}: {}", step, error.what());
        }
      }) {}

bool StartupPathCheck::Finish(AbandonableThread::Clock::time_point deadline) {
  if (thread_.Finish(deadline)) return true;
  spdlog::warn("{} has hung since startup; the daemon exits without waiting for it", thread_.step());
  return false;
}

}  // namespace pinfeed
