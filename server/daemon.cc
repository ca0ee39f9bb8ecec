// SPDX-License-Identifier: Apache-2.0
#include "server/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <fstream>
#include <optional>
#include <vector>

#include "common/byte_size.h"
#include "common/host_limits.h"
#include "common/log.h"
#include "common/quote.h"
#include "server/delivery.h"
#include "server/host_check.h"
#include "server/memory/device_arenas.h"
#include "server/memory/pinned_pool.h"
#include "server/pipeline/progress_check.h"
#include "server/pipeline/tracer.h"
#include "server/pipeline/worker_pool.h"
#include "server/session/acceptor.h"
#include "server/session/admin_service.h"
#include "server/session/dataset_cache.h"
#include "server/session/feed_table.h"
#include "server/session/lifeline.h"
#include "server/session/open_feed.h"
#include "server/session/rpc_server.h"
#include "server/session/service.h"
#include "server/session/session.h"
#include "server/session/socket_dir.h"
#include "server/session/token.h"
#include "server/session/user_report.h"
#include "server/telemetry/http.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/status_json.h"
#include "server/version.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kCallGrace(1000);  // for calls that run when the gRPC server stops
constexpr std::chrono::seconds kStopGrace(30);         // behind the drain, until the process has ended

sigset_t DaemonSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// Each session takes a handful of descriptors; the soft limit is often 1024 for the sake of select(2), which
// is not used here.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    spdlog::warn("raise the limit on descriptors: errno {}", errno);
}

void SetEvent(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      ::write(fd, &one, sizeof one);  // only fails when it is set very often already
}

// A descriptor that the parent passed by number. It must not reach programs started later.
Result<UniqueFd> Inherited(int fd, const char* flag) {
  if (fd < 0) return UniqueFd();
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    return ErrnoStatus(std::string(flag) + " " + std::to_string(fd), errno);
  return UniqueFd(fd);
}

std::function<bool(uid_t)> ServedUids(const AllowedUids& allowed) {
  return [allowed, own = ::geteuid()](uid_t uid) {
    return allowed.any || uid == 0 || uid == own || allowed.uids.count(uid) != 0;
  };
}

}  // namespace

void BlockDaemonSignals() {
  const sigset_t set = DaemonSignals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // a peer that is gone is seen as EPIPE
}

// In the order of creation.
struct Daemon::Parts {
  Refusals refusals;
  PeerRegistry peers;
  Tracer tracer;
  std::optional<SocketDir> directory;
  std::optional<PinnedPool> pool;
  std::optional<KeptMemory> kept;
  std::unique_ptr<DeviceArenas> devices;  // null: host memory only
  std::optional<WorkerPool> workers;
  std::optional<ProgressCheck> progress;
  std::optional<DatasetCache> datasets;
  FeedTable feeds;
  std::optional<SessionTable> sessions;
  std::unique_ptr<LifelineServer> lifelines;
  std::optional<FeedOpener> opener;
  std::optional<FeederService> service;
  std::optional<AdminService> admin;
  std::unique_ptr<RpcServer> rpc;
  std::optional<MetricsCollector> metrics;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<Acceptor> acceptor;
};

Result<std::unique_ptr<Daemon>> Daemon::Start(const CommandLine& command_line) {
  std::unique_ptr<Daemon> daemon(new Daemon(command_line));
  if (const Status status = daemon->Create(); !status.ok()) {
    daemon->service_.ShowStatus("cannot start: " + status.message());
    return status;
  }
  return daemon;
}

Daemon::Daemon(const CommandLine& command_line)
    : command_line_(command_line), server_epoch_(RandomUint64()), parts_(std::make_unique<Parts>()) {}

Daemon::~Daemon() {
  Stop();
}

Status Daemon::Create() {
  const Config& config = command_line_.config;
  RETURN_IF_ERROR(service_.Open(!command_line_.private_mode));
  service_.Starting("starting");
  RaiseDescriptorLimit();
  ASSIGN_OR_RETURN(lifetime_, Inherited(command_line_.lifetime_fd, "--lifetime-fd"));
  ASSIGN_OR_RETURN(ready_fd_, Inherited(command_line_.ready_fd, "--ready-fd"));
  const sigset_t set = DaemonSignals();
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return ErrnoStatus("create a signalfd", errno);
  sessions_gone_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!sessions_gone_) return ErrnoStatus("create an eventfd", errno);
  ASSIGN_OR_RETURN(const uint64_t pool_bytes, PoolBytes(config.pool_bytes));
  ASSIGN_OR_RETURN(std::string boot_id, ReadBootId());
  ASSIGN_OR_RETURN(SocketDir directory, SocketDir::Lock(config.socket_dir, command_line_.private_mode));
  parts_->directory.emplace(std::move(directory));

  parts_->pool.emplace(pool_bytes, config.user_pool_bytes.Of(pool_bytes), PinnedPool::Names());
  parts_->kept.emplace();
  gpu_failed_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!gpu_failed_) return ErrnoStatus("create an eventfd", errno);
  ASSIGN_OR_RETURN(Delivery delivery,
                   ChooseDelivery(
                       config, *parts_->pool, [this](const Status& failure) { OnGpuFailure(failure); },
                       [this](uint64_t bytes, uint64_t total) {
                         service_.Starting("pinning host memory: ",
                                           ByteSize(bytes) + " of " + ByteSize(total));
                       }));
  parts_->devices = std::move(delivery.devices);
  backend_ = std::move(delivery.backend);
  parts_->workers.emplace(config.workers != 0 ? config.workers : UsableCpus(AffinityCpus()));
  parts_->progress.emplace(
      *parts_->workers,
      [devices = parts_->devices.get()] {
        return devices == nullptr ? std::vector<GpuSnapshot>() : devices->Snapshot();
      },
      config.stuck_timeout);
  parts_->datasets.emplace(
      DatasetCache::Options{config.datasets, config.allowed_roots, config.dataset_cache});
  parts_->sessions.emplace(config.max_sessions, config.user_sessions != 0 ? config.user_sessions : UINT32_MAX,
                           [fd = sessions_gone_.get()] { SetEvent(fd); });
  ASSIGN_OR_RETURN(const std::optional<gid_t> group, SocketGroup(config.socket_group));
  const ListenerOptions options{config.socket_mode, group, ServedUids(config.allowed_uids)};
  ASSIGN_OR_RETURN(
      Listener lifeline_listener,
      Listen(ServiceNotify::kLifelineSocket, parts_->directory->lifeline_path(), SOCK_SEQPACKET, options));
  ASSIGN_OR_RETURN(parts_->lifelines,
                   LifelineServer::Create(std::move(lifeline_listener), config.pending_timeout,
                                          *parts_->sessions, parts_->refusals));
  parts_->opener.emplace(FeedOpener::Parts{*parts_->pool, *parts_->kept, *parts_->workers, *parts_->datasets,
                                           parts_->feeds, *parts_->sessions, config.default_slots,
                                           parts_->devices.get(), parts_->tracer});
  parts_->service.emplace(FeederService::Parts{
      parts_->peers, *parts_->opener, *parts_->datasets, *parts_->lifelines, parts_->refusals,
      [this] { return Snapshot(); }, kVersion, std::move(boot_id), server_epoch_});
  parts_->admin.emplace(AdminService::Parts{parts_->peers, parts_->feeds, *parts_->sessions, parts_->refusals,
                                            parts_->tracer, ::geteuid()});
  ASSIGN_OR_RETURN(parts_->rpc, RpcServer::Create(*parts_->service, *parts_->admin));
  if (!config.http_listen.empty()) {
    parts_->metrics.emplace(kVersion, [this] { return Snapshot(); });
    ASSIGN_OR_RETURN(parts_->http,
                     HttpServer::Create({config.http_listen, config.http_hosts, &*parts_->metrics,
                                         [this] { return StatusJson(Snapshot(), kVersion); },
                                         [this] { return ready_ && !draining(); }, &parts_->refusals}));
    std::ofstream port_file(parts_->directory->http_port_path(), std::ios::trunc);
    if (!(port_file << parts_->http->port() << std::endl))
      return Internal("write " + QuotePath(parts_->directory->http_port_path()));
    port_file_ = FileId::Of(parts_->directory->http_port_path());
    spdlog::info("HTTP on port {}", parts_->http->port());
  } else {
    ::unlink(parts_->directory->http_port_path().c_str());  // of an earlier daemon; the lock is held
  }
  ASSIGN_OR_RETURN(Listener rpc_listener, Listen(ServiceNotify::kControlSocket, parts_->directory->rpc_path(),
                                                 SOCK_STREAM, options));
  ASSIGN_OR_RETURN(parts_->acceptor, Acceptor::Create(std::move(rpc_listener), parts_->peers,
                                                      parts_->refusals, [this](UniqueFd connection) {
                                                        parts_->rpc->Serve(std::move(connection));
                                                      }));
  // From here on threads of ours run, and the sockets are served.
  parts_->workers->Start();
  parts_->feeds.Start();
  RETURN_IF_ERROR(parts_->lifelines->Start());
  parts_->acceptor->Start();
  AnnounceReady();
  return OkStatus();
}

Result<Listener> Daemon::Listen(std::string_view name, const std::string& path, int type,
                                const ListenerOptions& options) {
  UniqueFd passed = service_.TakeSocket(name);
  if (!passed) return Listener::Create(path, type, options, parts_->refusals);
  return Listener::Adopt(std::move(passed), path, type, options, parts_->refusals);
}

void Daemon::OnGpuFailure(const Status& failure) {
  spdlog::error("{}; this process cannot use the GPU any more and ends, to be started anew",
                failure.message());
  ready_ = false;
  {
    const MutexLock lock(failure_mutex_);
    failure_ = failure;
  }
  SetEvent(gpu_failed_.get());
}

void Daemon::AnnounceReady() {
  parts_->rpc->SetHealthy(true);
  ready_ = true;
  spdlog::info("pinfeedd {} {}, pid {}", kVersion, ServingText(), ::getpid());
  service_.Ready(ServingText());
  if (ready_fd_) {
    constexpr std::string_view kReady = "ready\n";
    if (::write(ready_fd_.get(), kReady.data(), kReady.size()) < 0)
      spdlog::warn("write to --ready-fd: errno {}", errno);
    ready_fd_.reset();
  }
}

std::string Daemon::ServingText() const {
  return "serves " + QuotePath(command_line_.config.socket_dir) + ": pool of " +
         ByteSize(parts_->pool->capacity_bytes()) + ", " + std::to_string(parts_->workers->threads()) +
         " workers";
}

Clock::time_point Daemon::Watch() {
  if (!service_.watchdog_interval()) return Clock::time_point::max();
  const Clock::time_point now = Clock::now();
  if (now < next_watch_) return next_watch_;
  if (parts_->progress->Stuck().empty()) service_.FeedWatchdog();
  next_watch_ = now + *service_.watchdog_interval();
  return next_watch_;
}

bool Daemon::AwaitEnd(bool draining, Clock::time_point deadline) {
  while (true) {
    if (draining && parts_->sessions->AllLeft()) return true;
    const Clock::time_point until = std::min(Watch(), draining ? deadline : Clock::time_point::max());
    int timeout_ms = -1;
    if (until != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
    }
    std::array<pollfd, 4> waits = {pollfd{signals_.get(), POLLIN, 0},
                                   pollfd{lifetime_ ? lifetime_.get() : -1, POLLIN, 0},
                                   pollfd{draining ? sessions_gone_.get() : -1, POLLIN, 0},
                                   pollfd{draining ? -1 : gpu_failed_.get(), POLLIN, 0}};
    const int count = ::poll(waits.data(), waits.size(), timeout_ms);
    if (count < 0) continue;  // EINTR: a debugger
    if (count == 0) {
      if (draining && Clock::now() >= deadline) return true;
      continue;
    }
    if (waits[3].revents != 0) return true;
    if (waits[2].revents != 0) {
      uint64_t events = 0;
      [[maybe_unused]] const ssize_t bytes = ::read(sessions_gone_.get(), &events, sizeof events);
    }
    if (waits[1].revents != 0) {
      std::array<char, 64> ignored{};
      const ssize_t bytes = ::read(lifetime_.get(), ignored.data(), ignored.size());
      if (bytes == 0 || (bytes < 0 && errno != EINTR && errno != EAGAIN)) {
        spdlog::info("the process this daemon serves has ended");
        return true;
      }
    }
    signalfd_siginfo signal{};
    if (::read(signals_.get(), &signal, sizeof signal) != sizeof signal) continue;
    if (signal.ssi_signo == SIGHUP) {
      if (!draining) service_.Reloading();
      spdlog::warn("SIGHUP from pid {}: the configuration is read at the start only; restart to change it",
                   signal.ssi_pid);
      if (!draining) service_.Ready(ServingText());
      continue;
    }
    spdlog::info("signal {} from pid {}: {}", signal.ssi_signo, signal.ssi_pid,
                 draining ? "ending at once" : "draining");
    return draining;
  }
}

Status Daemon::Run() {
  const bool at_once = AwaitEnd(false, {});
  service_.Stopping(command_line_.config.drain_timeout + kStopGrace);
  BeginDrain();
  parts_->sessions->Close();
  parts_->rpc->SetHealthy(false);
  parts_->feeds.DrainAll();
  if (!at_once) {
    AwaitEnd(true, Clock::now() + command_line_.config.drain_timeout);
    if (!parts_->sessions->AllLeft()) spdlog::warn("some sessions are still open; ending without them");
  }
  Stop();
  spdlog::info("pinfeedd ends");
  const MutexLock lock(failure_mutex_);
  return failure_;
}

void Daemon::BeginDrain() {
  Clock::rep none = kNotDraining;
  drain_began_.compare_exchange_strong(none, Clock::now().time_since_epoch().count());
}

void Daemon::Stop() {
  if (parts_ == nullptr) return;
  BeginDrain();
  if (parts_->acceptor) parts_->acceptor->Stop();
  if (parts_->http) UnlinkIfSame(parts_->directory->http_port_path(), port_file_);
  parts_->http.reset();
  if (parts_->sessions) parts_->sessions->Close();
  if (parts_->rpc) parts_->rpc->Stop(kCallGrace);
  if (parts_->lifelines) parts_->lifelines->Stop();
  if (parts_->sessions) {
    for (const std::shared_ptr<Session>& session : parts_->sessions->All())
      parts_->sessions->End(session, "the daemon ends");
  }
  parts_->feeds.Stop();
  if (parts_->workers) parts_->workers->Stop();
  parts_.reset();
}

DaemonSnapshot Daemon::Snapshot() const {
  DaemonSnapshot snapshot;
  snapshot.server_epoch = server_epoch_;
  snapshot.uptime_seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  snapshot.ready = ready_;
  snapshot.draining = draining();
  if (snapshot.draining) {
    const Clock::time_point began{Clock::duration(drain_began_.load())};
    snapshot.draining_seconds = std::chrono::duration<double>(Clock::now() - began).count();
  }
  snapshot.workers = parts_->workers->threads();
  snapshot.workers_busy = parts_->workers->busy();
  snapshot.worker_chunks = parts_->workers->progress();
  snapshot.sample_durations = parts_->workers->durations();
  snapshot.pool_capacity_bytes = parts_->pool->capacity_bytes();
  snapshot.pool_used_bytes = parts_->pool->used_bytes();
  snapshot.open_fds = CountOpenFds();
  snapshot.max_fds = MaxFds();
  snapshot.cpu_seconds = CpuSeconds();
  snapshot.started_unix_seconds = std::chrono::duration<double>(started_at_.time_since_epoch()).count();
  snapshot.config_unix_seconds = snapshot.started_unix_seconds;  // it is loaded at the start only
  snapshot.resident_bytes = ResidentBytes();
  FeedTable::View feeds = parts_->feeds.Snapshot();
  snapshot.feeds = std::move(feeds.feeds);
  snapshot.totals = feeds.totals;
  parts_->sessions->AddTo(snapshot.feeds);
  snapshot.sessions_opened = parts_->sessions->opened();
  snapshot.sessions_closed = parts_->sessions->closed();
  snapshot.max_sessions = command_line_.config.max_sessions;
  snapshot.refusals = parts_->refusals.counts();
  snapshot.fallbacks = parts_->sessions->fallbacks();
  snapshot.refused_requests = parts_->refusals.codes();
  snapshot.backend = backend_;
  if (parts_->devices != nullptr) snapshot.gpus = parts_->devices->Snapshot();
  FillUsers(*parts_->pool, *parts_->kept, *parts_->sessions, parts_->devices.get(), snapshot);
  return snapshot;
}

}  // namespace pinfeed
