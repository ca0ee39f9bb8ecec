// SPDX-License-Identifier: Apache-2.0
// Reloads the configuration without blocking the daemon. In: reload requests. Out: the configuration that was
// read, on the main thread, and an answer to each request, even if storage hangs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/tls/tls_identity.h"
#include "server/config/config.h"
#include "server/config/reload.h"
#include "server/daemon/abandonable_thread.h"
#include "server/daemon/request_queue.h"

namespace pinfeed {

// What a reload has read.
struct LoadedConfig {
  CommandLine command_line;
  std::optional<TlsIdentity> identity;  // of the admin endpoint, if one is configured
  std::vector<std::string> warnings;
};

// Purpose: reads the configuration on a separate thread. A hung mount would otherwise block the main thread,
// and with it signals and the watchdog. A read that exceeds the timeout is logged, and its requests are
// answered. Its result is still adopted when it arrives, unless a later reload came first.
// Owns: the thread that reads, and at most kMaxAbandoned threads of abandoned reads that still hang.
// Borrows: the queue, which outlives it.
// Threads: the main thread. Only Finish blocks.
// Errors: logged and returned to the requesters: those of `load`; kDeadlineExceeded, which names the step
// that hangs; kResourceExhausted when too many reads hang; kFailedPrecondition after Stop.
// Invariants:
// 1. Every request is answered exactly once.
// 2. A request gets a configuration that was read after it arrived.
// 3. An older configuration never replaces one that was read later.
class Reloader {
 public:
  using Clock = std::chrono::steady_clock;
  using AtStep = AbandonableThread::AtStep;
  // Reads the configuration. It may hang and outlive the reloader, so it uses only data that it owns.
  using Load = std::function<Result<LoadedConfig>(const AtStep& at)>;
  using OnReloaded = std::function<void(const Result<ReloadReport>&)>;
  // For the service manager, a reload lasts from `begun` to `ready`. Both may be called several times;
  // `ready` is always last.
  struct Parts {
    RequestQueue& main;
    std::function<Load()> make_load;
    // Applies the new configuration and logs it.
    std::function<ReloadReport(const std::string& who, const LoadedConfig& loaded)> adopt;
    std::function<void(bool good)> outcome;
    std::function<void()> begun;
    std::function<void(const std::string& remark)> ready;
    std::chrono::milliseconds timeout{4000};  // twice this is below the deadline of Admin.Reload calls
  };
  static constexpr size_t kMaxAbandoned = 4;

  explicit Reloader(Parts parts);
  // Abandons the threads that hang.
  ~Reloader();
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

  // `who` is for the log; `done` may be null. Requests that arrive during a read are all served by the next
  // one.
  void Request(const std::string& who, OnReloaded done);
  // Handles a read that has exceeded the timeout. Returns when to call again.
  Clock::time_point CheckTimeout();
  // Refuses new requests, answers the waiting ones, and adopts nothing any more.
  void Stop();
  // After Stop: waits for the reading threads until `deadline`. Returns false if any still hang. The process
  // must then exit without destroying data that they may use.
  bool Finish(Clock::time_point deadline);

 private:
  class ResultHandoff;
  struct PendingReload {
    std::string who;
    size_t others = 0;  // further requesters
    std::vector<OnReloaded> answers;
    std::string Requesters() const;
  };
  struct Reading {
    std::shared_ptr<ResultHandoff> handoff;
    AbandonableThread thread;
  };
  struct Current {
    uint64_t number = 0;
    PendingReload pending;
    Clock::time_point since;
    bool timed_out = false;  // logged and answered
    Reading at;
  };

  void BeginNext();
  Reading StartReading(uint64_t number);
  void OnRead(uint64_t number, const Result<LoadedConfig>& loaded);
  void OnTimeout();
  // Joins the abandoned threads that have ended.
  void JoinAbandoned();
  void Fail(const PendingReload& pending, const Status& status);
  // Begins the next reload if one is requested, or else is ready with that remark, and answers.
  void Conclude(const PendingReload& pending, const Result<ReloadReport>& result, const std::string& remark);
  static void Answer(const PendingReload& pending, const Result<ReloadReport>& result);

  const Parts parts_;
  uint64_t readings_ = 0;
  std::optional<Current> current_;
  std::optional<PendingReload> next_;
  std::list<Reading> abandoned_;
  bool stopped_ = false;
};

}  // namespace pinfeed
