// SPDX-License-Identifier: Apache-2.0
// The daemon's talk with systemd. In: sockets it listens on already, a watchdog's interval. Out: how the
// daemon fares: sd_notify(3).
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: the service manager's side of the daemon's life; where there is none, every call does nothing.
// Owns: sockets passed and not yet taken, and until Ready another descriptor of each. Threads: Starting and
// ShowStatus from any, the rest from the main thread. Errors: Open refuses sockets that it does not know; a
// message that cannot be sent is logged once.
class ServiceNotify {
 public:
  // Names of passed sockets: FileDescriptorName= of their units.
  static constexpr std::string_view kControlSocket = "control";
  static constexpr std::string_view kLifelineSocket = "lifeline";

  ServiceNotify() = default;
  // `notify` false: says nothing (a private daemon inherits its user's environment, not its service).
  Status Open(bool notify);

  // Empty when none was passed under this name.
  UniqueFd TakeSocket(std::string_view name);
  // Whether there is one to be taken.
  bool HasSocket(std::string_view name) const;
  // Nothing when no watchdog is set.
  std::optional<std::chrono::milliseconds> watchdog_interval() const { return watchdog_interval_; }

  // The start is at `step` (a literal) and goes on: it may take another while from now on. Sent when the step
  // is a new one, else once a second at most.
  void Starting(const char* step, const std::string& detail = {});
  void Ready(const std::string& status);
  void Reloading();
  // The end may take so long.
  void Stopping(const std::string& status, std::chrono::milliseconds at_most);
  void FeedWatchdog();
  void ShowStatus(const std::string& status);
  // For a start that no other start can mend, before the process ends: hangs up on whoever connects to the
  // sockets passed, for a second. A client that waited there would have the service manager start us again
  // and again.
  void RefuseClients();

 private:
  void Send(const std::string& lines);

  bool notify_ = false;
  std::optional<std::chrono::milliseconds> watchdog_interval_;
  std::vector<std::pair<std::string, UniqueFd>> sockets_;
  std::vector<UniqueFd> spare_;  // of the same sockets, for RefuseClients
  std::atomic<const char*> step_{nullptr};
  std::atomic<int64_t> step_sent_s_{0};  // of the steady clock
  std::atomic<bool> warned_{false};
};

}  // namespace pinfeed
