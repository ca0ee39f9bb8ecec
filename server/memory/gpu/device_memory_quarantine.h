// SPDX-License-Identifier: Apache-2.0
// Device memory of clients that ended without a farewell. In: memory that nobody uses any more but a dead
// client's work may. Out: the same memory freed, and its charge given back, once no such work can be left.
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

// Purpose: the quarantine of device memory. Owns: what it is given, until it frees it; a thread, since
// freeing waits for the GPU. Borrows: the list of processes (null: there is none), the pools of the leases;
// both outlive it. Threads: any; only AwaitNone blocks. Errors: none; while NVML cannot tell, cuda-ipc memory
// stays, and the log says why.
// Invariants: 1. memory leaves when each of its clients has ended and the GPU's list of processes, asked
// after that, has none of them: a forked child may keep a dead client's kernels running; 2. cuda-ipc memory
// is neither freed nor used before, not even at destruction: it then goes with the process; 3. vmm-fd memory
// is the driver's to keep, so only its charge lingers, to tell where the GPU's memory is.
class DeviceMemoryQuarantine {
 public:
  explicit DeviceMemoryQuarantine(const GpuProcesses* processes);
  ~DeviceMemoryQuarantine();
  DeviceMemoryQuarantine(const DeviceMemoryQuarantine&) = delete;
  DeviceMemoryQuarantine& operator=(const DeviceMemoryQuarantine&) = delete;

  // `memory` is empty with vmm-fd.
  void Add(const std::string& gpu_uuid, Backend backend, DeviceMemory memory, BudgetLease lease,
           std::vector<ClientProcess> clients) PF_EXCLUDES(mutex_);
  std::vector<QuarantinedMemory> Snapshot(const std::string& gpu_uuid) const PF_EXCLUDES(mutex_);
  uint64_t QuarantinedBytes(const std::string& gpu_uuid) const PF_EXCLUDES(mutex_);
  // What its thread waits for: NVML, or the GPU. Nothing while it sleeps.
  std::optional<OngoingOperation> Current() const PF_EXCLUDES(mutex_);
  // Until nothing lingers, at most until `deadline`.
  void AwaitNone(std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Piece {
    std::string gpu_uuid;
    Backend backend = Backend::kVmmFd;
    DeviceMemory memory;
    uint64_t bytes = 0;
    BudgetLease lease;
    std::vector<ClientProcess> clients;
    Clock::time_point since;
  };
  void Run() PF_EXCLUDES(mutex_);
  bool MayGo(const Piece& piece) PF_EXCLUDES(mutex_);
  // Of the list of a GPU's processes: tells of an error when it comes, and when it is over.
  void Note(const std::string& gpu_uuid, const Status& listed);
  void Begin(std::string what) PF_EXCLUDES(mutex_);

  const GpuProcesses* const processes_;
  std::set<std::string> unlisted_;  // GPUs whose list could not be had; of the thread
  mutable Mutex mutex_;
  CondVar changed_;
  // Shared with the thread that looks at one without the lock; taken out by that thread alone.
  std::vector<std::shared_ptr<Piece>> pieces_ PF_GUARDED_BY(mutex_);
  uint64_t added_ PF_GUARDED_BY(mutex_) = 0;
  std::optional<OngoingOperation> current_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pinfeed
