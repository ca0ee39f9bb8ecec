// SPDX-License-Identifier: Apache-2.0
// The parts of a daemon. Only for the files of this folder.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/cache/decoded_cache.h"
#include "server/dataset/dataset_cache.h"
#include "server/dataset/index_store.h"
#include "server/loading/progress_check.h"
#include "server/loading/resident_table.h"
#include "server/loading/worker_pool.h"
#include "server/memory/device_arenas.h"
#include "server/memory/host_memory_quarantine.h"
#include "server/memory/memory_budget.h"
#include "server/memory/ongoing_operation.h"
#include "server/metrics/http.h"
#include "server/net/admin_access.h"
#include "server/net/frame_guard.h"
#include "server/net/refusals.h"
#include "server/net/socket_dir.h"
#include "server/rpc/admin_endpoint.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/callers.h"
#include "server/rpc/dataset_opener.h"
#include "server/rpc/health_service.h"
#include "server/rpc/rpc_server.h"
#include "server/rpc/service.h"
#include "server/session/feed_table.h"
#include "server/session/lifeline.h"
#include "server/session/open_feed.h"
#include "server/session/session_table.h"
#include "server/trace/tracer.h"

namespace pinfeed {

inline constexpr std::chrono::seconds kStopGrace(30);     // from the end of the drain to the exit
inline constexpr std::chrono::seconds kBrokenGpuStop(5);  // the same, after a GPU failure
inline constexpr std::chrono::seconds kCloseGrace(2);     // for datasets to close or finish opening

// Threads that read remote datasets, and ask cold disks for local ones. They wait more than they work, so
// there are more of them than processors.
inline constexpr uint32_t kReaderThreads = 32;

// Everything that a thread blocked on a dataset uses. It is leaked to such a thread at shutdown.
struct Datasets {
  // `store` may be null.
  Datasets(DatasetCache::Options options, std::unique_ptr<IndexStore> store)
      : index_store(std::move(store)),
        cache(
            std::move(options),
            [this](uid_t user, const DatasetSpec& spec, std::shared_ptr<const Dataset> dataset) {
              opener.Close(user, spec, std::move(dataset));
            },
            [this](const std::shared_ptr<const Location>& location, const DatasetSpec& spec) {
              return OpenDataset(location, spec, index_store.get());
            }) {}

  const std::unique_ptr<IndexStore> index_store;
  DatasetOpener opener{[this](uid_t user, const DatasetSpec& spec) { return cache.Open(user, spec); },
                       [this](const std::string& name) {
                         const std::shared_ptr<const DatasetCache::Options> options = cache.options();
                         const auto named = options->named.find(name);
                         return named == options->named.end() ? std::string() : named->second.path;
                       }};
  DatasetCache cache;  // destroyed first; uses the opener
};

// In order of creation.
struct DaemonParts {
  // What threads of no pool are at, for ProgressCheck.
  std::vector<OngoingOperation> Operations() const;
  // How a person finds this sample of a feed; empty if there is no such feed.
  std::string SampleName(uint64_t feed_id, uint64_t sample);

  Refusals refusals;
  PeerRegistry peers;
  std::optional<AdminAccess> admin_access;  // empty: no TCP endpoint
  std::optional<Callers> callers;
  Tracer tracer;
  std::optional<SocketDir> directory;
  std::optional<MemoryBudget> pool;
  std::optional<HostMemoryQuarantine> host_quarantine;
  std::optional<HostMemoryQuarantine> one_off_memory;
  std::optional<DecodedCache> cache;      // empty: cache_bytes is off
  std::unique_ptr<DeviceArenas> devices;  // null: host memory only
  std::string backend;                    // for status: the backend of batches, and why
  std::optional<WorkerPool> workers;
  std::optional<WorkerPool> readers;  // started with the first remote feed or slow local read
  std::optional<ProgressCheck> progress;
  std::unique_ptr<Datasets> datasets;
  ResidentTable residents;
  FeedTable feeds;
  std::optional<SessionTable> sessions;
  std::unique_ptr<LifelineServer> lifelines;
  std::optional<FeedOpener> opener;
  std::optional<FeederService> service;
  std::optional<AdminService> admin;
  std::optional<HealthService> health;
  std::unique_ptr<RpcServer> rpc;
  std::unique_ptr<HttpServer> http;
  std::optional<FileId> http_port_file;
  std::unique_ptr<FrameGuard> guard;
  std::unique_ptr<AdminEndpoint> admin_endpoint;
};

}  // namespace pinfeed
