// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/daemon.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/quote.h"
#include "common/os/host_limits.h"
#include "server/config/version.h"
#include "server/daemon/daemon_parts.h"
#include "server/daemon/gpu_support.h"
#include "server/daemon/host_check.h"
#include "server/daemon/service_environment.h"
#include "server/daemon/shutdown_deadline.h"
#include "server/daemon/startup_signal_watcher.h"
#include "server/metrics/metrics.h"
#include "server/metrics/status_json.h"

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kCallGrace(1000);  // for calls in progress when the gRPC server stops

constexpr rlim_t kMinDescriptors = 64;  // a daemon has some 30 open, and keeps 8 for connections

// Each session takes several descriptors. The soft limit is often 1024 because of select(2), which the daemon
// does not use.
Status RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return OkStatus();
  if (limit.rlim_max < kMinDescriptors) {
    return ResourceExhausted("this process may open " + std::to_string(limit.rlim_max) +
                             " descriptors, and needs at least " + std::to_string(kMinDescriptors) +
                             "; raise the limit (LimitNOFILE= of the unit, ulimit -n)");
  }
  if (limit.rlim_cur == limit.rlim_max) return OkStatus();
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    spdlog::warn("cannot raise the limit on descriptors: errno {}", errno);
  return OkStatus();
}

// The same part of all readers as a user may have of the workers.
uint32_t ReadersOfAUser(uint32_t user_workers, uint32_t workers) {
  if (user_workers == 0 || user_workers >= workers) return UINT32_MAX;
  return std::max(1U, static_cast<uint32_t>(uint64_t{kReaderThreads} * user_workers / workers));
}

// Takes over a descriptor that the parent passed by number. Programs started later must not inherit it.
Result<UniqueFd> Inherited(int fd, const char* flag) {
  if (fd < 0) return UniqueFd();
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    return ErrnoStatus(std::string(flag) + " " + std::to_string(fd), errno);
  return UniqueFd(fd);
}

// Null without one: datasets are then listed at each open.
std::unique_ptr<IndexStore> OpenIndexStore(const std::string& configured) {
  if (configured == "off") return nullptr;
  const bool chosen = configured != "auto";
  const std::string directory = chosen ? configured : CacheDirectory();
  if (directory.empty()) return nullptr;
  // So that the log says what a start waits for whose storage does not answer.
  spdlog::info("opening index_dir {}", QuotePath(directory));
  Result<std::unique_ptr<IndexStore>> store = IndexStore::Open(directory);
  if (store.ok()) return *std::move(store);
  spdlog::log(chosen ? spdlog::level::warn : spdlog::level::info,
              "index_dir: {}; the file names of datasets are not kept", store.status().message());
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::Start(const CommandLine& command_line, ReadConfig read_config) {
  std::unique_ptr<Daemon> daemon(new Daemon(command_line, std::move(read_config)));
  if (const Status status = daemon->Create(); !status.ok()) {
    daemon->service_.ShowStatus("cannot start: " + status.message());
    if (status.code() == Code::kInvalidArgument) daemon->service_.RefuseClients();
    return status;
  }
  return daemon;
}

Daemon::Daemon(const CommandLine& command_line, ReadConfig read_config)
    : read_config_(std::move(read_config)),
      running_(command_line),
      parts_(std::make_unique<DaemonParts>()),
      snapshots_(*parts_, running_, state_) {}

Daemon::~Daemon() {
  Stop();
}

Status Daemon::Create() {
  const Config& config = running_.config();
  RETURN_IF_ERROR(service_.Open(!running_.command_line().private_mode));
  service_.Starting("starting");
  RETURN_IF_ERROR(RaiseDescriptorLimit());
  ASSIGN_OR_RETURN(UniqueFd lifetime, Inherited(running_.command_line().lifetime_fd, "--lifetime-fd"));
  ASSIGN_OR_RETURN(ready_fd_, Inherited(running_.command_line().ready_fd, "--ready-fd"));
  RETURN_IF_ERROR(events_.Open(std::move(lifetime)));
  ASSIGN_OR_RETURN(const uint64_t pool_bytes, PoolBytes(config.pool_bytes));
  ASSIGN_OR_RETURN(std::string boot_id, ReadBootId());
  RETURN_IF_ERROR(LoadAdminAccess());
  ASSIGN_OR_RETURN(SocketDir directory,
                   SocketDir::Lock(config.socket_dir, running_.command_line().private_mode));
  parts_->directory.emplace(std::move(directory));
  // A socket passed by the service manager accepts connections even without a daemon.
  if (!service_.HasSocket(ServiceNotify::kControlSocket)) RETURN_IF_ERROR(parts_->directory->CheckUnserved());

  parts_->pool.emplace(pool_bytes, config.user_pool_bytes.Of(pool_bytes), MemoryBudget::Names());
  parts_->host_quarantine.emplace();
  parts_->one_off_memory.emplace("one-off-memory");
  const uint32_t cpus = UsableCpus(AffinityCpus());
  const uint32_t workers = config.workers != 0 ? config.workers : cpus;
  if (config.cache_bytes.IsSet()) {
    ASSIGN_OR_RETURN(const uint64_t cache_bytes, CacheBytes(config.cache_bytes, pool_bytes));
    const uint64_t buffers = workers * HostMemoryLedger::kKeptBufferBytes;
    parts_->cache.emplace(DecodedCache::Options{
        .capacity_bytes = cache_bytes,
        .user_bytes = config.user_cache_bytes.Of(cache_bytes),
        // Feeds come first: what they may still take of the pool stays free, and the buffers of the workers.
        .headroom_bytes = [pool = &*parts_->pool,
                           buffers] { return pool->capacity_bytes() - pool->used_bytes() + buffers; },
        .freed_besides_bytes = buffers});
  }
  RETURN_IF_ERROR(OpenGpus());
  parts_->workers.emplace(workers, config.user_workers != 0 ? config.user_workers : UINT32_MAX);
  parts_->readers.emplace(kReaderThreads, ReadersOfAUser(config.user_workers, workers), PoolKind::kReaders);
  parts_->progress.emplace(
      ProgressCheck::Parts{
          *parts_->workers,
          [devices = parts_->devices.get()] {
            return devices == nullptr ? std::vector<GpuSnapshot>() : devices->Snapshot();
          },
          [this](uint64_t feed, uint64_t sample) { return parts_->SampleName(feed, sample); },
          service_.watchdog_interval().has_value(), [this] { return parts_->Operations(); },
          &*parts_->readers},
      config.stuck_timeout);
  parts_->datasets = std::make_unique<Datasets>(
      DatasetCache::Options{config.datasets, config.allowed_roots, config.dataset_cache},
      OpenIndexStore(config.index_dir));
  parts_->sessions.emplace(config.max_sessions, config.user_sessions != 0 ? config.user_sessions : UINT32_MAX,
                           [this] { events_.Wake(); });
  ASSIGN_OR_RETURN(const std::optional<gid_t> group, SocketGroup(config.socket_group));
  const ListenerOptions options{config.socket_mode, group,
                                [this](uid_t uid) { return running_.Serves(uid); }};
  ASSIGN_OR_RETURN(
      Listener lifeline_listener,
      Listen(ServiceNotify::kLifelineSocket, parts_->directory->lifeline_path(), SOCK_SEQPACKET, options));
  ASSIGN_OR_RETURN(parts_->lifelines,
                   LifelineServer::Create(std::move(lifeline_listener), config.pending_timeout,
                                          *parts_->sessions, parts_->refusals));
  parts_->opener.emplace(FeedOpener::Parts{
      *parts_->pool, *parts_->host_quarantine, *parts_->one_off_memory, *parts_->workers, *parts_->readers,
      parts_->feeds, *parts_->sessions, config.default_slots, cpus, parts_->devices.get(), parts_->tracer,
      parts_->cache ? &*parts_->cache : nullptr,
      [this] { return parts_->datasets->cache.options()->allowed_roots; }, &parts_->residents});
  parts_->callers.emplace(parts_->peers, parts_->admin_access ? &*parts_->admin_access : nullptr);
  parts_->service.emplace(FeederService::Parts{*parts_->callers, *parts_->opener, parts_->datasets->cache,
                                               parts_->datasets->opener, *parts_->lifelines, parts_->refusals,
                                               [this] { return snapshots_.Take(); }, kVersion,
                                               std::move(boot_id), snapshots_.server_epoch()});
  parts_->admin.emplace(AdminService::Parts{*parts_->callers, parts_->feeds, *parts_->sessions,
                                            *parts_->lifelines, parts_->refusals, parts_->tracer,
                                            MakeOperatorCalls(), ::geteuid()});
  parts_->health.emplace(*parts_->sessions);
  const RpcServer::Services services{*parts_->service, *parts_->admin, *parts_->health};
  ASSIGN_OR_RETURN(parts_->rpc, RpcServer::Create(services));
  RETURN_IF_ERROR(OpenHttp());
  ASSIGN_OR_RETURN(Listener rpc_listener, Listen(ServiceNotify::kControlSocket, parts_->directory->rpc_path(),
                                                 SOCK_STREAM, options));
  ASSIGN_OR_RETURN(parts_->guard, FrameGuard::Create(std::move(rpc_listener), parts_->peers,
                                                     [rpc = parts_->rpc.get()](UniqueFd connection) {
                                                       rpc->Serve(std::move(connection));
                                                     },
                                                     parts_->refusals, {.thread_name = "guard"}));
  RETURN_IF_ERROR(OpenAdminEndpoint());
  // From here on, threads run and the sockets are served.
  parts_->workers->Start();
  parts_->feeds.Start();
  parts_->residents.Start();
  RETURN_IF_ERROR(parts_->lifelines->Start());
  parts_->guard->Start();
  if (parts_->admin_endpoint) parts_->admin_endpoint->Start();
  return AnnounceReady();
}

Status Daemon::LoadAdminAccess() {
  const Config& config = running_.config();
  if (config.admin_listen.empty()) return OkStatus();
  Result<TlsIdentity> identity = ReadAdminIdentity(config);
  if (!identity.ok()) return WithOrigin(identity.status(), running_.command_line());
  for (const std::string& warning : ValidityWarnings(config, *identity)) spdlog::warn("{}", warning);
  parts_->admin_access.emplace(*std::move(identity), config.admin_clients);
  return OkStatus();
}

Status Daemon::OpenAdminEndpoint() {
  if (!parts_->admin_access) return OkStatus();
  const std::string& listen = running_.config().admin_listen;
  ASSIGN_OR_RETURN(parts_->admin_endpoint,
                   AdminEndpoint::Create(listen, {*parts_->service, *parts_->admin, *parts_->health},
                                         *parts_->admin_access, parts_->peers, parts_->refusals));
  spdlog::info("the admin endpoint listens with TLS on {}, port {}", listen, parts_->admin_endpoint->port());
  return OkStatus();
}

Status Daemon::OpenGpus() {
  // Only the main thread uses the directory at this point, and it is blocked below.
  ASSIGN_OR_RETURN(const StartupSignalWatcher watch, StartupSignalWatcher::Create(
                                                         events_.signals(), events_.lifetime(),
                                                         [this] {
                                                           service_.ShowStatus("stopped before it was ready");
                                                           parts_->directory.reset();
                                                         },
                                                         [this] { reload_missed_ = true; }));
  ASSIGN_OR_RETURN(
      GpuSupport support,
      ::pinfeed::OpenGpus(
          running_.config(), *parts_->pool, [this](const Status& failure) { OnGpuFailure(failure); },
          [this](uint64_t bytes, uint64_t total) {
            service_.Starting("pinning host memory: ", ByteSize(bytes) + " of " + ByteSize(total));
          }));
  parts_->devices = std::move(support.devices);
  parts_->backend = std::move(support.backend);
  return OkStatus();
}

Status Daemon::OpenHttp() {
  const std::string& port_path = parts_->directory->http_port_path();
  if (running_.config().http_listen.empty()) {
    ::unlink(port_path.c_str());  // left by an earlier daemon; the lock is held
    return OkStatus();
  }
  const auto metrics = [this] {
    const bool broken = state_.failed();  // read before the snapshot, which then includes the failure
    DaemonSnapshot snapshot = snapshots_.Take();
    if (broken && state_.ShowFailure()) events_.Wake();
    return MetricsText(std::move(snapshot));
  };
  ASSIGN_OR_RETURN(parts_->http,
                   HttpServer::Create({running_.config().http_listen, running_.config().http_hosts, metrics,
                                       [this] { return StatusJson(snapshots_.Take()); },
                                       [this] { return state_.ready(); }, &parts_->refusals}));
  ASSIGN_OR_RETURN(parts_->http_port_file,
                   WriteNewFile(port_path, std::to_string(parts_->http->port()) + "\n"));
  spdlog::info("HTTP on {}, port {}", running_.config().http_listen, parts_->http->port());
  return OkStatus();
}

Result<Listener> Daemon::Listen(std::string_view name, const std::string& path, int type,
                                const ListenerOptions& options) {
  UniqueFd passed = service_.TakeSocket(name);
  if (!passed) return Listener::Create(path, type, options, parts_->refusals);
  return Listener::Adopt(std::move(passed), path, type, options, parts_->refusals);
}

Status Daemon::AnnounceReady() {
  RETURN_IF_ERROR(state_.failure());
  parts_->health->SetServing(true);
  state_.Announce();
  const std::string& file = running_.command_line().config_file;
  spdlog::info("pinfeedd {} {}, pid {}, {}", kVersion, ServingText(), ::getpid(),
               file.empty() ? "without a configuration file" : "configured by " + QuotePath(file));
  service_.Ready(ServingText());
  if (ready_fd_) {
    constexpr std::string_view kReady = "ready\n";
    if (::write(ready_fd_.get(), kReady.data(), kReady.size()) < 0)
      spdlog::warn("cannot write to --ready-fd: errno {}", errno);
    ready_fd_.reset();
  }
  return OkStatus();
}

std::string Daemon::ServingText() const {
  return "serves " + QuotePath(running_.config().socket_dir) + ": pool of " +
         ByteSize(parts_->pool->capacity_bytes()) + ", " + std::to_string(parts_->workers->threads()) +
         " workers";
}

void Daemon::Stop() {
  if (parts_ == nullptr) return;
  const ShutdownDeadline deadline(state_.failure().ok() ? kStopGrace : kBrokenGpuStop,
                                  parts_->directory ? parts_->directory->lock() : -1);
  state_.BeginDrain();
  if (parts_->guard) parts_->guard->StopAccepting();
  if (parts_->http) UnlinkIfSame(parts_->directory->http_port_path(), parts_->http_port_file);
  parts_->http.reset();
  if (parts_->sessions) parts_->sessions->Close();
  requests_.Close();
  if (parts_->health) parts_->health->Close();
  if (parts_->datasets) parts_->datasets->opener.Stop();
  if (parts_->admin_endpoint) parts_->admin_endpoint->Stop(kCallGrace);
  if (parts_->guard) parts_->guard->HangUpAt(Clock::now() + 2 * kCallGrace);
  if (parts_->rpc) parts_->rpc->Stop(kCallGrace);
  if (parts_->guard) parts_->guard->Stop();
  if (parts_->lifelines) parts_->lifelines->Stop();
  if (parts_->sessions) {
    for (const std::shared_ptr<Session>& session : parts_->sessions->All())
      parts_->sessions->Depart(session, {DepartureReason::kDaemonStops});
  }
  parts_->feeds.Stop();
  parts_->residents.Stop();
  if (parts_->readers) parts_->readers->Stop();
  if (parts_->workers) parts_->workers->Stop();
  CloseDatasets();
  parts_.reset();
}

void Daemon::CloseDatasets() {
  if (!parts_->datasets) return;
  parts_->datasets->cache.Clear();
  if (parts_->datasets->opener.Finish(Clock::now() + kCloseGrace)) return;
  for (const DatasetOpener::Operation& hung : parts_->datasets->opener.RunningOperations())
    spdlog::warn("{} is not done; the daemon exits without waiting for it", hung.what);
  (void)parts_->datasets.release();  // blocked threads use it until the process exits
  hangs_ = true;
}

}  // namespace pinfeed
