// SPDX-License-Identifier: Apache-2.0
// Quarantine for device memory of clients that ended without a bye. In: memory that nothing but a dead
// client's GPU work can still access. Out: the memory freed, and its charge released, once no such work can
// remain.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/sync.h"
#include "common/cuda/device_memory.h"
#include "common/spec/feed_spec.h"
#include "server/memory/client_process.h"
#include "server/memory/device_arenas.h"
#include "server/memory/gpu/gpu_processes.h"
#include "server/memory/memory_budget.h"
#include "server/memory/ongoing_operation.h"

namespace pinfeed {

// Purpose: holds device memory until the GPU work of dead clients has ended.
// Owns: the memory until it is freed, and a thread, because freeing waits for the GPU.
// Borrows: the GPU process list (null: none is available) and the budgets of the leases. Both outlive it.
// Threads: any; only AwaitNone blocks.
// Errors: none. While NVML fails, cuda-ipc memory stays, and the log says why.
// Invariants:
// 1. Memory is released only after each of its clients has ended and a later query of the GPU's process list
//    contains none of them. A forked child may keep a dead client's kernels running.
// 2. cuda-ipc memory is neither freed nor reused before that. Destruction abandons it, and the process exit
//    frees it.
// 3. The driver keeps vmm-fd memory alive, so only its charge is quarantined, to account for the GPU's
//    memory.
class DeviceMemoryQuarantine {
 public:
  explicit DeviceMemoryQuarantine(const GpuProcesses* processes);
  ~DeviceMemoryQuarantine();

  // `memory` is empty for vmm-fd.
  void Add(const std::string& gpu_uuid, Backend backend, DeviceMemory memory, BudgetLease lease,
           std::vector<ClientProcess> clients) PF_EXCLUDES(mutex_);
  std::vector<QuarantinedMemory> Snapshot(const std::string& gpu_uuid) const PF_EXCLUDES(mutex_);
  uint64_t QuarantinedBytes(const std::string& gpu_uuid) const PF_EXCLUDES(mutex_);
  // The step that the thread waits for (NVML or the GPU). Empty while it sleeps.
  std::optional<OngoingOperation> CurrentOperation() const PF_EXCLUDES(mutex_);
  // Waits until the quarantine is empty, at most until `deadline`.
  void AwaitNone(std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::string gpu_uuid;
    Backend backend = Backend::kVmmFd;
    DeviceMemory memory;
    uint64_t bytes = 0;
    BudgetLease lease;
    std::vector<ClientProcess> clients;
    Clock::time_point since;
  };
  void Run() PF_EXCLUDES(mutex_);
  bool CanFree(const Entry& entry) PF_EXCLUDES(mutex_);
  // Logs when a GPU's process list becomes unavailable, and when it is available again.
  void LogListing(const std::string& gpu_uuid, const Status& listed);
  void SetOperation(std::string what) PF_EXCLUDES(mutex_);

  const GpuProcesses* const processes_;
  std::set<std::string> unlisted_;  // GPUs whose list is unavailable; used by the thread only
  mutable Mutex mutex_;
  CondVar changed_;
  // Shared with the thread, which reads entries without the lock. Only that thread removes them.
  std::vector<std::shared_ptr<Entry>> entries_ PF_GUARDED_BY(mutex_);
  uint64_t added_ PF_GUARDED_BY(mutex_) = 0;
  std::optional<OngoingOperation> current_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pinfeed
