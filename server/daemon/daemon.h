// SPDX-License-Identifier: Apache-2.0
// The daemon: built from a configuration, serves until it is told to stop, and cleans up after itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "server/config/config.h"
#include "server/config/served_users.h"
#include "server/daemon/load_config.h"
#include "server/daemon/reloader.h"
#include "server/daemon/request_queue.h"
#include "server/daemon/service_notify.h"
#include "server/memory/ongoing_operation.h"
#include "server/metrics/snapshot.h"
#include "server/net/listener.h"
#include "server/net/socket_dir.h"
#include "server/rpc/admin_service.h"

namespace pinfeed {

// Blocks the signals that the daemon reads through signalfd, in this thread and in all threads it starts.
// Call before the first thread starts.
void BlockDaemonSignals();

// Purpose: owns every part of the daemon and orders their creation and destruction.
// Threads: call Start, Run and the destructor from the main thread.
// Errors: Start returns a one-line reason. kInvalidArgument means that only a changed configuration can help.
// A failed Start leaves nothing behind.
//
// Parts are created in this order and destroyed in reverse. A part may use those created before it:
// socket directory lock, pool, GPUs, workers, readers, dataset cache, feed table, session table, lifelines,
// opener, service, gRPC server, HTTP, guard, admin endpoint. Shutdown closes admission (guard, then HTTP and
// gRPC), ends lifelines and sessions, stops feeds, readers and workers, and closes datasets. Finally, the
// pool checks that all memory was returned. Waits for a GPU or a disk that does not answer are bounded. After
// that, the process exits without cleaning up.
class Daemon {
 public:
  // Precondition: BlockDaemonSignals.
  static Result<std::unique_ptr<Daemon>> Start(const CommandLine& command_line, ReadConfig read_config);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Serves until SIGTERM, SIGINT, the end of the lifetime pipe, an operator's request, or a GPU failure. Then
  // drains and stops. It does not drain after the end of the lifetime pipe, and a second signal ends the
  // drain at once. Returns an error when a GPU failed: only a new process can use that GPU again.
  Status Run() PF_EXCLUDES(failure_mutex_);
  // After Run: true if a thread is still blocked on storage. The process must then exit without destroying
  // data that the thread may use.
  bool hangs() const { return hangs_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Parts;  // all of the parts, so that this header needs none of their headers
  Daemon(const CommandLine& command_line, ReadConfig read_config);
  Status Create();
  Status OpenGpus();
  Status OpenHttp();
  // Reads the admin endpoint's certificate files if an endpoint is configured. OpenAdminEndpoint listens
  // later.
  Status LoadAdminAccess();
  Status OpenAdminEndpoint();
  // Returns the socket of this name from the service manager, or a new one.
  Result<Listener> Listen(std::string_view name, const std::string& path, int type,
                          const ListenerOptions& options);
  // Fails if a GPU has failed since the start.
  Status AnnounceReady();
  std::string ServingText() const;
  void Stop();
  // Waits only briefly for datasets whose storage hangs.
  void CloseDatasets();
  // Whether clients can open feeds.
  bool ready() const { return announced_ && !broken_ && !draining(); }
  DaemonSnapshot Snapshot() const;

  // ---- daemon_run.cc: the main thread, once every part exists.
  // Whether the daemon has been asked to stop.
  bool ending() const { return stop_requests_ > 0 || lifetime_over_ || broken_; }
  void AwaitClients();
  // Waits for a signal, the end of the lifetime pipe or a wake-up, and handles it.
  void WaitOnce(Clock::time_point until);
  void OnSignal();
  // Checks the progress of workers and GPUs if a check is due. Feeds the service manager's watchdog, if any,
  // when nothing is stuck. Returns the time of the next check.
  Clock::time_point CheckProgress();
  // For ProgressCheck.
  std::vector<OngoingOperation> Operations() const;
  std::string SampleName(uint64_t feed_id, uint64_t sample) const;
  // Idempotent.
  void BeginDrain();
  bool draining() const { return drain_began_ != kNotDraining; }
  void OnGpuFailure(const Status& failure) PF_EXCLUDES(failure_mutex_);
  Status failure() const PF_EXCLUDES(failure_mutex_);
  // Applies the new configuration completely or not at all. `who` names the requester in the log.
  void RequestReload(const std::string& who, Reloader::OnReloaded done);
  ReloadReport Adopt(const std::string& who, const LoadedConfig& loaded);
  void Apply(const Config& config);
  Reloader::Parts MakeReloaderParts();
  // For AdminService.
  OperatorCalls MakeOperatorCalls();
  void Wake() const;

  CommandLine command_line_;  // in force; main thread only once started
  const ReadConfig read_config_;
  const Clock::time_point started_ = Clock::now();
  const std::chrono::system_clock::time_point started_at_ = std::chrono::system_clock::now();
  const uint64_t server_epoch_;
  std::atomic<bool> announced_{false};
  std::atomic<bool> broken_{false};         // a GPU has failed
  std::atomic<bool> failure_shown_{false};  // the metrics were fetched after the failure
  std::atomic<std::chrono::milliseconds> drain_timeout_;
  std::atomic<bool> config_good_{true};
  std::atomic<std::chrono::system_clock::time_point> config_at_{started_at_};
  static constexpr Clock::rep kNotDraining = 0;
  std::atomic<Clock::rep> drain_began_{kNotDraining};
  ServiceNotify service_;
  Clock::time_point progress_checked_at_;   // last progress check; main thread only
  int stop_requests_ = 0;                   // stop requests so far; main thread only
  bool lifetime_over_ = false;              // of the process this daemon serves; main thread only
  std::atomic<bool> reload_missed_{false};  // SIGHUP arrived during startup
  UniqueFd signals_;
  std::optional<FileId> port_file_;  // main thread only
  UniqueFd lifetime_;
  UniqueFd ready_fd_;
  UniqueFd wake_;  // eventfd that ends WaitOnce
  mutable Mutex failure_mutex_;
  Status failure_ PF_GUARDED_BY(failure_mutex_);  // of the first GPU that failed
  std::string backend_;                           // for status: the backend of batches, and why
  RequestQueue requests_{[this] { Wake(); }};
  Reloader reloader_{MakeReloaderParts()};  // main thread only
  bool hangs_ = false;                      // main thread only
  ServedUsers users_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace pinfeed
