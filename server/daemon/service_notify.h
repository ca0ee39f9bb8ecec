// SPDX-License-Identifier: Apache-2.0
// The daemon's connection to systemd. In: sockets passed by socket units, the watchdog interval. Out:
// sd_notify(3) messages.
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

// Purpose: receives sockets from the service manager and reports the daemon's state to it. Without a service
// manager, every call does nothing.
// Owns: the passed sockets that are not taken yet, and a duplicate of each until Ready.
// Threads: Starting and ShowStatus from any thread, the rest from the main thread.
// Errors: Open refuses unknown sockets. A message that cannot be sent is logged once.
class ServiceNotify {
 public:
  // Names of passed sockets (FileDescriptorName= of their units).
  static constexpr std::string_view kControlSocket = "control";
  static constexpr std::string_view kLifelineSocket = "lifeline";

  ServiceNotify() = default;
  // With `notify` false, sends nothing: a private daemon inherits its user's environment, but not the
  // service.
  Status Open(bool notify);

  // Returns the socket passed under this name, or an empty handle.
  UniqueFd TakeSocket(std::string_view name);
  // Whether TakeSocket would return a socket.
  bool HasSocket(std::string_view name) const;
  // Empty when no watchdog is set.
  std::optional<std::chrono::milliseconds> watchdog_interval() const { return watchdog_interval_; }

  // Reports that startup is at `step` (a string literal), and extends the startup timeout. Sent for each new
  // step, otherwise at most once per second.
  void Starting(const char* step, const std::string& detail = {});
  void Ready(const std::string& status);
  void Reloading();
  // Reports that shutdown may take up to `timeout`.
  void Stopping(const std::string& status, std::chrono::milliseconds timeout);
  void FeedWatchdog();
  void ShowStatus(const std::string& status);
  // Call before exiting when a restart cannot help. Accepts and closes connections to the passed sockets for
  // one second. A client left waiting there would make the service manager restart the daemon endlessly.
  void RefuseClients();

 private:
  void Send(const std::string& lines);

  bool notify_ = false;
  std::optional<std::chrono::milliseconds> watchdog_interval_;
  std::vector<std::pair<std::string, UniqueFd>> sockets_;
  std::vector<UniqueFd> duplicates_;  // duplicates of the sockets, for RefuseClients
  std::atomic<const char*> step_{nullptr};
  std::atomic<int64_t> step_sent_s_{0};  // steady clock
  std::atomic<bool> warned_{false};
};

}  // namespace pinfeed
