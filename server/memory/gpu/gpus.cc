// SPDX-License-Identifier: Apache-2.0
// The GPUs of this host, each with its copy engine, and the pinned memory that they share per NUMA node.
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/byte_size.h"
#include "common/base/join.h"
#include "common/base/log.h"
#include "common/base/quote.h"
#include "common/wire/shared_page.h"
#include "server/memory/device_arenas.h"
#include "server/memory/gpu/copy_engine.h"
#include "server/memory/gpu/cuda_arena.h"
#include "server/memory/gpu/device_memory_quarantine.h"
#include "server/memory/gpu/gpu_processes.h"
#include "server/memory/gpu/pinned_region.h"
#include "server/memory/gpu/striped_arena.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {
namespace {

// How long NVML may take to list a process that has just created its context.
constexpr std::chrono::milliseconds kListingWait(500);
constexpr std::chrono::milliseconds kListingPause(10);

// Purpose: the parts of one GPU, in order of creation. Its arenas are destroyed before all of them.
struct Gpu {
  std::shared_ptr<const CudaDevice> device;
  PinnedRegion* region = nullptr;
  std::unique_ptr<MemoryBudget> memory;  // what arenas may use
  std::unique_ptr<CopyEngine> engine;
  std::unique_ptr<CopyEngine> peer_engine;  // of copies from other GPUs; null: there are none
};

// This context launches no kernels. Minimal limits save over 200 MiB of the GPU's memory for the trainer.
void ShrinkContext(const CudaDevice& device) {
  const auto scope = device.Enter();
  for (const CUlimit limit : {CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE}) {
    if (device.driver().cuCtxSetLimit(limit, 0) != CUDA_SUCCESS) {
      spdlog::debug("GPU {}: limit {} cannot be lowered", device.uuid(), static_cast<int>(limit));
    }
  }
}

// Purpose: see DeviceArenas.
class Gpus final : public DeviceArenas {
 public:
  static Result<std::unique_ptr<Gpus>> Create(const DeviceOptions& options, MemoryBudget& pool) {
    ASSIGN_OR_RETURN(const int count, CudaDevice::Count());
    if (count == 0) return Unavailable("the CUDA driver reports no GPU");
    auto gpus = std::make_unique<Gpus>();
    gpus->on_failure_ = options.on_failure;
    std::map<int, std::shared_ptr<const CudaDevice>> nodes;  // the first GPU of each node
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      Gpu gpu;
      ASSIGN_OR_RETURN(gpu.device, CudaDevice::Open(ordinal));
      ShrinkContext(*gpu.device);
      nodes.emplace(gpu.device->numa_node(), gpu.device);
      const uint64_t total = gpu.device->total_bytes();
      if (options.gpu_bytes.bytes > total) {
        return ResourceExhausted("gpu_bytes: " + std::to_string(options.gpu_bytes.bytes) +
                                 " bytes are more than the " + std::to_string(total) + " of GPU " +
                                 gpu.device->uuid());
      }
      const uint64_t budget = options.gpu_bytes.Of(total);
      gpu.memory = std::make_unique<MemoryBudget>(
          budget, options.user_gpu_bytes.Of(budget),
          MemoryBudget::Names{"the memory for batches of GPU " + gpu.device->uuid(), "gpu_bytes",
                              "user_gpu_bytes"});
      gpus->gpus_.push_back(std::move(gpu));
    }
    for (const auto& [node, device] : nodes) {
      const uint64_t pinned = options.pinned_bytes / nodes.size();
      const double of_user = options.user_pinned_bytes.bytes == 0
                                 ? options.user_pinned_bytes.share
                                 : std::min(1.0, static_cast<double>(options.user_pinned_bytes.bytes) /
                                                     static_cast<double>(options.pinned_bytes));
      const PinnedRegion::Options region{pinned, of_user, node, options.threads, options.on_progress};
      ASSIGN_OR_RETURN(BudgetLease lease, pool.Reserve(region.bytes).WithContext("pinned_bytes"));
      ASSIGN_OR_RETURN(gpus->regions_[node], PinnedRegion::Create(device, region, std::move(lease)));
    }
    for (Gpu& gpu : gpus->gpus_) {
      gpu.region = gpus->regions_.at(gpu.device->numa_node()).get();
      ASSIGN_OR_RETURN(gpu.engine, CopyEngine::Create(gpu.device, "copy", options.on_failure));
      if (count > 1) {
        ASSIGN_OR_RETURN(gpu.peer_engine, CopyEngine::Create(gpu.device, "peer", options.on_failure));
      }
      spdlog::info("feeds GPU {} ({}, {}): up to {} MiB of its memory", gpu.device->ordinal(),
                   gpu.device->name(), gpu.device->uuid(), gpu.memory->capacity_bytes() >> 20);
    }
    gpus->processes_ = GpuProcesses::Load();
    if (!gpus->processes_.ok()) {
      spdlog::info("cuda-ipc is unavailable, and memory that dead clients still use cannot be detected: {}",
                   gpus->processes_.status().message());
    }
    gpus->quarantine_ =
        std::make_unique<DeviceMemoryQuarantine>(gpus->processes_.ok() ? gpus->processes_->get() : nullptr);
    return gpus;
  }

  Status CheckFeeds(const std::string& gpu_uuid) const override { return Find(gpu_uuid).status(); }

  Result<std::unique_ptr<Arena>> Make(const std::string& gpu_uuid, Backend backend, Sharing sharing,
                                      const BatchLayout& layout, uint32_t slot_count, uid_t user) override {
    if (slot_count < kMinSlots) {
      return InvalidArgument("slots: " + std::to_string(slot_count) + " is not within " +
                             std::to_string(kMinSlots) + " to " + std::to_string(kMaxSlots));
    }
    const auto make = [this, backend, layout, slot_count, user](const std::string& uuid, Staging staging) {
      return MakeArena(uuid, backend, layout, slot_count, staging, user);
    };
    if (sharing == Sharing::kBroadcast) return StripedArena::Create(gpu_uuid, make);
    return make(gpu_uuid, Staging::kPinned);
  }

  Result<std::unique_ptr<Arena>> MakeResident(const std::string& gpu_uuid, const BatchLayout& layout,
                                              uid_t user) override {
    return MakeArena(gpu_uuid, Backend::kVmmFd, layout, 1, Staging::kPinned, user);
  }

  MemoryBudget::Room RoomFor(const std::string& gpu_uuid, uint64_t bytes, uid_t user) const override {
    const Result<const Gpu*> gpu = Find(gpu_uuid);
    if (!gpu.ok() || !CheckedAdd(bytes, kArenaIdBytes, &bytes)) return MemoryBudget::Room::kNever;
    const Result<uint64_t> pages = DeviceMemory::WholePages(*(*gpu)->device, bytes);
    return pages.ok() ? (*gpu)->memory->RoomFor(*pages, user) : MemoryBudget::Room::kNever;
  }

  Status CheckIpcClient(const std::string& gpu_uuid, pid_t pid) const override {
    ASSIGN_OR_RETURN(const Gpu* const gpu, Find(gpu_uuid));
    if (!processes_.ok()) {
      return FailedPrecondition("the end of a client's work on the GPU cannot be detected: " +
                                processes_.status().message());
    }
    const uint64_t quarantined = quarantine_->QuarantinedBytes(gpu_uuid);
    if (quarantined > gpu->memory->capacity_bytes() / 2) {
      return ResourceExhausted(
          ExactByteSize(quarantined) + " of GPU " + gpu_uuid +
          " are quarantined until the work of dead clients ends, more than half of the " +
          ExactByteSize(gpu->memory->capacity_bytes()) +
          " for batches; `pinfeed status` names the processes");
    }
    const auto deadline = std::chrono::steady_clock::now() + kListingWait;
    while (true) {
      Result<std::vector<pid_t>> listed = (*processes_)->On(gpu_uuid);
      if (!listed.ok()) return FailedPrecondition(listed.status().message());
      if (std::find(listed->begin(), listed->end(), pid) != listed->end()) return OkStatus();
      if (std::chrono::steady_clock::now() >= deadline) break;
      std::this_thread::sleep_for(kListingPause);
    }
    return FailedPrecondition("NVML does not list the client (pid " + std::to_string(pid) + ") on GPU " +
                              gpu_uuid + ", so the end of its work there cannot be detected");
  }

  void AwaitEmptyQuarantine(std::chrono::steady_clock::time_point deadline) override {
    quarantine_->AwaitNone(deadline);
  }

  std::optional<OngoingOperation> CurrentOperation() const override {
    return quarantine_->CurrentOperation();
  }

  std::map<uid_t, UserBytes> UsedByUser() const override {
    std::map<uid_t, UserBytes> all;
    for (const auto& [node, region] : regions_) {
      for (const auto& [user, bytes] : region->used_by_user()) all[user].pinned += bytes;
    }
    for (const Gpu& gpu : gpus_) {
      for (const auto& [user, bytes] : gpu.memory->used_by_user()) all[user].device += bytes;
    }
    return all;
  }

  UserBytes MaxPerUser() const override {
    UserBytes max{0, UINT64_MAX};
    for (const auto& [node, region] : regions_) max.pinned += region->max_per_user();
    for (const Gpu& gpu : gpus_) max.device = std::min(max.device, gpu.memory->max_per_user());
    return max;
  }

  std::vector<GpuSnapshot> Snapshot() const override {
    std::vector<GpuSnapshot> all;
    for (const Gpu& gpu : gpus_) {
      const CopyCounts::Values copied = gpu.engine->counters();
      CopyCounts::Values from_peers;
      std::vector<GpuSnapshot::CopyThread> threads{{gpu.engine->thread_name(), gpu.engine->Stalled()}};
      if (gpu.peer_engine != nullptr) {
        from_peers = gpu.peer_engine->counters();
        threads.push_back({gpu.peer_engine->thread_name(), gpu.peer_engine->Stalled()});
      }
      all.push_back({gpu.device->uuid(), gpu.device->name(), gpu.memory->capacity_bytes(),
                     gpu.memory->used_bytes(), quarantine_->Snapshot(gpu.device->uuid()), copied.copies,
                     copied.bytes, from_peers.bytes, copied.copy_ns, copied.queue_ns, copied.durations,
                     copied.errors + from_peers.errors, std::move(threads)});
    }
    return all;
  }

 private:
  Result<std::unique_ptr<CudaArena>> MakeArena(const std::string& uuid, Backend backend,
                                               const BatchLayout& layout, uint32_t slot_count,
                                               Staging staging, uid_t user) {
    ASSIGN_OR_RETURN(const Gpu* const gpu, Find(uuid));
    const CudaArena::Parts parts{*gpu->region, *gpu->memory, *gpu->engine, gpu->peer_engine.get(),
                                 *quarantine_, *cache_,      user};
    Result<std::unique_ptr<CudaArena>> made =
        CudaArena::Create(gpu->device, backend, layout, slot_count, staging, parts);
    if (!made.ok()) ReportIfBroken(*gpu);
    return made;
  }

  // A failed allocation may be the first sign that the GPU broke while nothing was copied.
  void ReportIfBroken(const Gpu& gpu) const {
    const auto scope = gpu.device->Enter();
    const CUresult state =
        scope.status().ok() ? gpu.device->driver().cuStreamQuery(nullptr) : CUDA_ERROR_UNKNOWN;
    if (IsStickyCudaError(state)) on_failure_(CudaStatus(state, "use GPU " + gpu.device->uuid()));
  }

  Result<const Gpu*> Find(const std::string& gpu_uuid) const {
    const auto gpu = std::find_if(gpus_.begin(), gpus_.end(),
                                  [&](const Gpu& candidate) { return candidate.device->uuid() == gpu_uuid; });
    if (gpu != gpus_.end()) return &*gpu;
    const auto uuid_of = [](const Gpu& known) { return known.device->uuid(); };
    return NotFound("gpu_uuid: this daemon feeds no GPU " + QuotePath(gpu_uuid) + ", only " +
                    JoinTexts(gpus_, ", ", uuid_of));
  }

  std::function<void(const Status&)> on_failure_;
  Result<std::unique_ptr<const GpuProcesses>> processes_ = Unavailable("not loaded");
  // Members are destroyed in reverse order: regions outlive the engines that copy from them.
  std::map<int, std::unique_ptr<PinnedRegion>> regions_;  // by NUMA node
  std::vector<Gpu> gpus_;
  std::unique_ptr<DeviceMemoryQuarantine> quarantine_;
  const std::unique_ptr<CacheShare> cache_ = std::make_unique<CacheShare>(CacheShare::CacheBytes());
};

}  // namespace

Result<std::unique_ptr<DeviceArenas>> MakeDeviceArenas(const DeviceOptions& options, MemoryBudget& pool) {
  return Gpus::Create(options, pool);
}

}  // namespace pinfeed
