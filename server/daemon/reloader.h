// SPDX-License-Identifier: Apache-2.0
// The reloads of the configuration, beside the daemon's work. In: who wants one. Out: what was read, on the
// main thread; an answer to each, also when the storage of a file gives none.
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

// What a reload finds on the host.
struct LoadedConfig {
  CommandLine command_line;
  std::optional<TlsIdentity> identity;  // of the admin endpoint, if there is to be one
  std::vector<std::string> warnings;
};

// Purpose: reads on a thread of its own, since a mount that hangs would hold the main thread up, and with it
// signals and the watchdog. What has not been read within the patience is told of and answered, and taken all
// the same once it comes, unless a later reload came before. Owns: the thread that reads, and those that hang
// in reads given up, kMaxLeft at most. Borrows: the queue (outlives it). Threads: the main one; none of its
// calls blocks but Finish. Errors: a reload's are logged and answered: those of `load`; kDeadlineExceeded,
// which names what it is at; kResourceExhausted when too many hang; kFailedPrecondition at the end.
// Invariants: 1. every request is answered once; 2. what it gets was read after it came; 3. what was read
// earlier never follows what was read later.
class Reloader {
 public:
  using Clock = std::chrono::steady_clock;
  using AtStep = AbandonableThread::AtStep;
  // Reads. It may hang, and go on when the reloader is gone: it uses nothing but what it holds itself.
  using Load = std::function<Result<LoadedConfig>(const AtStep& at)>;
  using OnReloaded = std::function<void(const Result<ReloadReport>&)>;
  // For the service manager a reload lasts from `begun` to `ready`; both may come again, `ready` last.
  struct Parts {
    RequestQueue& main;
    std::function<Load()> make_load;
    // Puts what was read into force, and logs it.
    std::function<ReloadReport(const std::string& who, const LoadedConfig& loaded)> adopt;
    std::function<void(bool good)> outcome;
    std::function<void()> begun;
    std::function<void(const std::string& remark)> ready;
    std::chrono::milliseconds patience{4000};  // twice it, and less than a client of Admin.Reload waits
  };
  static constexpr size_t kMaxLeft = 4;

  explicit Reloader(Parts parts);
  // Leaves the threads that hang to themselves.
  ~Reloader();
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

  // `who` is for the log; `done` may be null. One that comes while another is read is served by the next
  // reading, together with all that came like it.
  void Request(const std::string& who, OnReloaded done);
  // Looks whether what is read has taken too long; returns when to come again.
  Clock::time_point Watch();
  // From here on nothing more is taken, adopted or told; whoever waits is answered.
  void Stop();
  // After Stop: whether no thread reads any more, for which it waits until then. The others are left to
  // themselves: the process must end without destroying what they may use.
  bool Finish(Clock::time_point deadline);

 private:
  class Delivery;
  struct Turn {
    std::string who;
    size_t more = 0;  // than that one
    std::vector<OnReloaded> answers;
    std::string Name() const;
  };
  struct Reading {
    std::shared_ptr<Delivery> delivery;
    AbandonableThread thread;
  };
  struct Current {
    uint64_t number = 0;
    Turn turn;
    Clock::time_point since;
    bool hangs = false;  // told and answered
    Reading at;
  };

  void BeginNext();
  Reading StartReading(uint64_t number);
  void OnRead(uint64_t number, const Result<LoadedConfig>& loaded);
  void OnPatienceOver();
  // Joins those that have come to their end.
  void PruneLeft();
  void Fail(const Turn& turn, const Status& status);
  static void Answer(const Turn& turn, const Result<ReloadReport>& result);

  const Parts parts_;
  uint64_t readings_ = 0;
  std::optional<Current> current_;
  std::optional<Turn> next_;
  std::list<Reading> left_;
  bool stopped_ = false;
};

}  // namespace pinfeed
