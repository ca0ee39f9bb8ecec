// SPDX-License-Identifier: Apache-2.0
// The daemon as a whole: made from a configuration, serves until told to end, leaves nothing behind.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.h"
#include "common/sync.h"
#include "common/unique_handle.h"
#include "server/config.h"
#include "server/service_notify.h"
#include "server/session/listener.h"
#include "server/session/socket_dir.h"
#include "server/telemetry/snapshot.h"

namespace pinfeed {

// Blocks the signals that the daemon reads by signalfd, in this thread and all it will start. Call it before
// the first thread.
void BlockDaemonSignals();

// Purpose: owns every part of the daemon, and the order of their lives. Threads: Start, Run and the
// destructor from the main thread. Errors: Start says in one line why it cannot; what it had made until then
// is gone again.
//
// Order of creation; destruction is the reverse, and each part may use those before it:
//   socket directory lock, pool, GPUs, workers, dataset cache, feed table, session table, lifelines, opener,
//   service, gRPC server, HTTP, acceptor.
// Stop: admission closes (acceptor, then HTTP and gRPC), lifelines end, sessions end, feeds stop, workers
// stop, and the pool finds all of its bytes home. What does not answer meanwhile, a GPU or a disk, is waited
// for within limits: then the process ends as it is.
class Daemon {
 public:
  // Precondition: BlockDaemonSignals.
  static Result<std::unique_ptr<Daemon>> Start(const CommandLine& command_line);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Serves until SIGTERM, SIGINT or the end of the lifetime pipe; then drains (at once after the pipe's end
  // or a second signal) and stops. An error when a GPU broke meanwhile: only a new process can use it again.
  Status Run() PF_EXCLUDES(failure_mutex_);

 private:
  struct Parts;  // everything above, so that this header needs none of it
  explicit Daemon(const CommandLine& command_line);
  Status Create();
  // The service manager's socket of this name if it passed one, else one made now.
  Result<Listener> Listen(std::string_view name, const std::string& path, int type,
                          const ListenerOptions& options);
  void AnnounceReady();
  std::string ServingText() const;
  // Feeds the service manager's watchdog if its time has come and all get on; returns when to come again.
  std::chrono::steady_clock::time_point Watch();
  // Waits for a signal or the lifetime pipe's end; once draining also for the last session's end, until the
  // deadline. True when nobody is to be waited for any more.
  bool AwaitEnd(bool draining, std::chrono::steady_clock::time_point deadline);
  // A second call changes nothing.
  void BeginDrain();
  bool draining() const { return drain_began_ != kNotDraining; }
  void OnGpuFailure(const Status& failure) PF_EXCLUDES(failure_mutex_);
  // Of the GPU that broke, if one did.
  Status Failure() PF_EXCLUDES(failure_mutex_) {
    const MutexLock lock(failure_mutex_);
    return failure_;
  }
  void Stop();
  DaemonSnapshot Snapshot() const;

  const CommandLine command_line_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  const std::chrono::system_clock::time_point started_at_ = std::chrono::system_clock::now();
  const uint64_t server_epoch_;
  std::atomic<bool> ready_{false};
  static constexpr std::chrono::steady_clock::rep kNotDraining = 0;
  std::atomic<std::chrono::steady_clock::rep> drain_began_{kNotDraining};
  ServiceNotify service_;
  std::chrono::steady_clock::time_point next_watch_;  // main thread only
  UniqueFd signals_;
  std::optional<FileId> port_file_;  // main thread only
  UniqueFd lifetime_;
  UniqueFd ready_fd_;
  UniqueFd gpu_failed_;  // eventfd: readable once failure_ is set
  Mutex failure_mutex_;
  Status failure_ PF_GUARDED_BY(failure_mutex_);
  std::string backend_;     // for status: what batches are delivered by, and why
  UniqueFd sessions_gone_;  // eventfd: readable once the last client may have left
  std::unique_ptr<Parts> parts_;
};

}  // namespace pinfeed
