// SPDX-License-Identifier: Apache-2.0
// The daemon as a whole: made from a configuration, serves until told to end, leaves nothing behind.
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

// Blocks the signals that the daemon reads by signalfd, in this thread and all it will start. Call it before
// the first thread.
void BlockDaemonSignals();

// Purpose: owns every part of the daemon, and the order of their lives. Threads: Start, Run and the
// destructor from the main thread. Errors: Start says in one line why it cannot, kInvalidArgument when only
// another configuration can help; what it had made until then is gone again.
//
// Order of creation; destruction is the reverse, and each part may use those before it:
//   socket directory lock, pool, GPUs, workers, readers, dataset cache, feed table, session table, lifelines,
//   opener, service, gRPC server, HTTP, guard, admin endpoint.
// Stop: admission closes (guard, then HTTP and gRPC), lifelines end, sessions end, feeds stop, readers and
// workers stop, datasets close, and the pool finds all of its bytes home. What does not answer meanwhile, a
// GPU or a disk, is waited for within limits: then the process ends as it is.
class Daemon {
 public:
  // Precondition: BlockDaemonSignals.
  static Result<std::unique_ptr<Daemon>> Start(const CommandLine& command_line, ReadConfig read_config);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Serves until SIGTERM, SIGINT, the end of the lifetime pipe, or until an operator or a broken GPU ends it;
  // then drains (not after the pipe's end; a second signal ends it at once) and stops. An error when a GPU
  // broke: only a new process can use it again.
  Status Run() PF_EXCLUDES(failure_mutex_);
  // After Run: whether a thread is left that does not come back from storage. The process must end without
  // destroying what it may use.
  bool hangs() const { return hangs_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Parts;  // everything above, so that this header needs none of it
  Daemon(const CommandLine& command_line, ReadConfig read_config);
  Status Create();
  Status OpenGpus();
  Status OpenHttp();
  // Reads the endpoint's files, if there is to be one; later listens.
  Status LoadAdminAccess();
  Status OpenAdminEndpoint();
  // The service manager's socket of this name if it passed one, else one made now.
  Result<Listener> Listen(std::string_view name, const std::string& path, int type,
                          const ListenerOptions& options);
  // Not when a GPU has broken meanwhile.
  Status AnnounceReady();
  std::string ServingText() const;
  void Stop();
  // Waits for those that hang for a little while only.
  void CloseDatasets();
  // Whether clients can open feeds.
  bool ready() const { return announced_ && !broken_ && !draining(); }
  DaemonSnapshot Snapshot() const;

  // ---- daemon_run.cc: the main thread, once all is there.
  // Whether something has asked for the end.
  bool ending() const { return asked_ > 0 || lifetime_over_ || broken_; }
  void AwaitClients();
  // Waits for a signal, the lifetime pipe's end or a wake-up, and does what they ask for.
  void WaitOnce(Clock::time_point until);
  void OnSignal();
  // Looks whether the pool gets on if it is time to, and then feeds the service manager's watchdog, if there
  // is one; returns when to come again.
  Clock::time_point Watch();
  // For ProgressCheck.
  std::vector<OngoingOperation> Operations() const;
  std::string SampleName(uint64_t feed_id, uint64_t sample) const;
  // A second call changes nothing.
  void BeginDrain();
  bool draining() const { return drain_began_ != kNotDraining; }
  void OnGpuFailure(const Status& failure) PF_EXCLUDES(failure_mutex_);
  Status failure() const PF_EXCLUDES(failure_mutex_);
  // All of it or nothing. `who` asked, for the log.
  void RequestReload(const std::string& who, Reloader::OnReloaded done);
  ReloadReport Adopt(const std::string& who, const LoadedConfig& loaded);
  void Apply(const Config& config);
  Reloader::Parts MakeReloaderParts();
  // For AdminService.
  OperatorCalls MakeOperatorCalls();
  void Wake() const;

  CommandLine command_line_;  // what is in force; from Start on main thread only
  const ReadConfig read_config_;
  const Clock::time_point started_ = Clock::now();
  const std::chrono::system_clock::time_point started_at_ = std::chrono::system_clock::now();
  const uint64_t server_epoch_;
  std::atomic<bool> announced_{false};
  std::atomic<bool> broken_{false};         // a GPU is
  std::atomic<bool> failure_shown_{false};  // somebody fetched the metrics since
  std::atomic<std::chrono::milliseconds> drain_timeout_;
  std::atomic<bool> config_good_{true};
  std::atomic<std::chrono::system_clock::time_point> config_at_{started_at_};
  static constexpr Clock::rep kNotDraining = 0;
  std::atomic<Clock::rep> drain_began_{kNotDraining};
  ServiceNotify service_;
  Clock::time_point watched_at_;            // the last Watch that looked; main thread only
  int asked_ = 0;                           // likewise: times that the end was asked for
  bool lifetime_over_ = false;              // likewise: of the process this daemon serves
  std::atomic<bool> reload_missed_{false};  // a SIGHUP came during the start
  UniqueFd signals_;
  std::optional<FileId> port_file_;  // main thread only
  UniqueFd lifetime_;
  UniqueFd ready_fd_;
  UniqueFd wake_;  // eventfd: brings the main thread out of WaitOnce
  mutable Mutex failure_mutex_;
  Status failure_ PF_GUARDED_BY(failure_mutex_);  // of the first GPU that broke
  std::string backend_;                           // for status: what batches are delivered by, and why
  RequestQueue requests_{[this] { Wake(); }};
  Reloader reloader_{MakeReloaderParts()};  // main thread only
  bool hangs_ = false;                      // likewise
  ServedUsers users_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace pinfeed
