// SPDX-License-Identifier: Apache-2.0
// The daemon: built from a configuration, serves until it is told to stop, and cleans up after itself.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "server/config/config.h"
#include "server/daemon/daemon_events.h"
#include "server/daemon/load_config.h"
#include "server/daemon/reloader.h"
#include "server/daemon/request_queue.h"
#include "server/daemon/running_config.h"
#include "server/daemon/service_notify.h"
#include "server/daemon/serving_state.h"
#include "server/daemon/snapshot_taker.h"
#include "server/net/listener.h"
#include "server/rpc/admin_service.h"

namespace pinfeed {

struct DaemonParts;  // all of the parts, so that this header needs none of their headers

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

  // Serves until SIGTERM, SIGINT, the end of the lifetime pipe, an operator's request, or a GPU failure. Then
  // drains and stops. It does not drain after the end of the lifetime pipe, and a second signal ends the
  // drain at once. Returns an error when a GPU failed: only a new process can use that GPU again.
  Status Run();
  // After Run: true if a thread is still blocked on storage. The process must then exit without destroying
  // data that the thread may use.
  bool hangs() const { return hangs_; }

 private:
  using Clock = std::chrono::steady_clock;
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

  // ---- daemon_run.cc: the main thread, once every part exists.
  void AwaitClients();
  // Waits for an event, and handles it.
  void WaitOnce(Clock::time_point until);
  void OnSignal(const DaemonEvents::Signal& signal);
  // Checks the progress of workers and GPUs if a check is due. Feeds the service manager's watchdog, if any,
  // when nothing is stuck. Returns the time of the next check.
  Clock::time_point CheckProgress();
  // From any thread.
  void OnGpuFailure(const Status& failure);
  // Applies the new configuration completely or not at all. `who` names the requester in the log.
  void RequestReload(const std::string& who, Reloader::OnReloaded done);
  Reloader::Parts MakeReloaderParts();
  // For AdminService.
  OperatorCalls MakeOperatorCalls();

  const ReadConfig read_config_;
  RunningConfig running_;
  ServingState state_;
  ServiceNotify service_;
  DaemonEvents events_;
  Clock::time_point progress_checked_at_;   // last progress check; main thread only
  std::atomic<bool> reload_missed_{false};  // SIGHUP arrived during startup
  UniqueFd ready_fd_;
  RequestQueue requests_{[this] { events_.Wake(); }};
  Reloader reloader_{MakeReloaderParts()};  // main thread only
  bool hangs_ = false;                      // main thread only
  std::unique_ptr<DaemonParts> parts_;
  const SnapshotTaker snapshots_;
};

}  // namespace pinfeed
