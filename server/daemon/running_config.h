// SPDX-License-Identifier: Apache-2.0
// The configuration in force. In: the one of the start, then those that reloads have read. Out: its values,
// and the parts that follow it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <string>

#include "server/config/config.h"
#include "server/config/reload.h"
#include "server/config/served_users.h"
#include "server/daemon/reloader.h"

namespace pinfeed {

struct DaemonParts;

// Purpose: replaces the configuration completely or not at all. Threads: what is not marked is for the main
// thread, once started. Errors: none; warnings are logged.
class RunningConfig {
 public:
  using WallClock = std::chrono::system_clock;

  explicit RunningConfig(const CommandLine& command_line)
      : command_line_(command_line),
        users_(command_line.config.allowed_uids),
        drain_timeout_(command_line.config.drain_timeout) {}

  const CommandLine& command_line() const { return command_line_; }
  const Config& config() const { return command_line_.config; }
  // Applies what a reload has read to the parts. `who` names the requester in the log.
  ReloadReport Adopt(const std::string& who, const LoadedConfig& loaded, DaemonParts& parts);
  // Whether the last reload succeeded.
  void SetGood(bool good) { good_ = good; }

  // Any thread.
  bool Serves(uid_t uid) const { return users_.Serves(uid); }
  std::chrono::milliseconds drain_timeout() const { return drain_timeout_; }
  bool good() const { return good_; }
  WallClock::time_point loaded_at() const { return loaded_at_; }

 private:
  void Apply(DaemonParts& parts);

  CommandLine command_line_;
  ServedUsers users_;
  std::atomic<std::chrono::milliseconds> drain_timeout_;
  std::atomic<bool> good_{true};
  std::atomic<WallClock::time_point> loaded_at_{WallClock::now()};
};

}  // namespace pinfeed
