// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/startup_path_check.h"

#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "server/daemon/host_check.h"

namespace pinfeed {
namespace {

using Clock = AbandonableThread::Clock;

constexpr std::chrono::seconds kPatience{4};  // as a reload's

}  // namespace

StartupPathCheck::StartupPathCheck(CommandLine command_line)
    : thread_("path-check", "starting",
              [command_line = std::move(command_line)](const auto& at) {
                std::string step = "starting";
                const auto note = [&](const std::string& next) { at(step = next); };
                try {
                  const CommandLine nothing;
                  for (const std::string& warning : MissingWarnings(nothing, command_line, note))
                    spdlog::warn("{}", warning);
                } catch (const std::exception& error) {
                  spdlog::warn("{}: {}", step, error.what());
                }
              }),
      warns_at_(Clock::now() + kPatience) {}

Clock::time_point StartupPathCheck::CheckTimeout() {
  if (Clock::now() < warns_at_) return warns_at_;
  if (warns_at_ != Clock::time_point::max() && !thread_.Finish(Clock::now()))
    spdlog::warn("{} is not done after {} s; does its storage answer?", thread_.step(), kPatience.count());
  return warns_at_ = Clock::time_point::max();
}

bool StartupPathCheck::Finish(AbandonableThread::Clock::time_point deadline) {
  if (thread_.Finish(deadline)) return true;
  spdlog::warn("{} has hung since startup; the daemon exits without waiting for it", thread_.step());
  return false;
}

}  // namespace pinfeed
