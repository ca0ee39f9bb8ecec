// SPDX-License-Identifier: Apache-2.0
// Arenas in GPU memory, as the rest of the daemon sees them. Free of CUDA, so that the core and its tests
// stay free of CUDA.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/histogram.h"
#include "common/base/memory_size.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "common/spec/tensor_spec.h"
#include "server/memory/arena.h"
#include "server/memory/memory_budget.h"
#include "server/memory/ongoing_operation.h"

namespace pinfeed {

// Memory of clients that ended without a bye. Their GPU work may still access it.
struct QuarantinedMemory {
  Backend backend = Backend::kVmmFd;
  uint64_t bytes = 0;
  std::vector<pid_t> pids;
  double seconds = 0;  // since its feed ended
};

// The state of a GPU for status and metrics. Counters only increase.
struct GpuSnapshot {
  std::string uuid;
  std::string name;
  uint64_t arena_capacity_bytes = 0;  // GPU memory available for arenas
  uint64_t arena_used_bytes = 0;      // includes quarantined memory
  std::vector<QuarantinedMemory> lingering;
  uint64_t copies = 0;
  uint64_t copied_bytes = 0;  // from the host
  uint64_t peer_bytes = 0;    // from other GPUs
  // Of copies from the host:
  uint64_t copy_ns = 0;   // time in which their stream was busy
  uint64_t queue_ns = 0;  // total time that filled slots waited for them
  DurationCounts copy_durations;
  uint64_t copy_errors = 0;
  struct CopyThread {
    std::string name;
    // Time since one of its copies last completed while some are pending. Unlike the counters, it can
    // decrease.
    std::chrono::nanoseconds stalled{0};
  };
  std::vector<CopyThread> copy_threads;

  std::chrono::nanoseconds stalled() const {
    std::chrono::nanoseconds longest{0};
    for (const CopyThread& thread : copy_threads) longest = std::max(longest, thread.stalled);
    return longest;
  }

  uint64_t lingering_bytes() const {
    uint64_t bytes = 0;
    for (const QuarantinedMemory& entry : lingering) bytes += entry.bytes;
    return bytes;
  }
};

// Purpose: creates arenas on the GPUs that this daemon feeds. Owns: contexts, pinned memory, copy threads.
// Threads: any. Errors: Make says what does not fit, with numbers. Invariant: outlives its arenas.
class DeviceArenas {
 public:
  virtual ~DeviceArenas() = default;

  // kNotFound, with the list of known GPUs, when the UUID is not among them.
  virtual Status CheckFeeds(const std::string& gpu_uuid) const = 0;
  // `backend` is kVmmFd or kCudaIpc. kNotFound, with the list of known GPUs, for an unknown UUID. The arena
  // of a broadcast accepts clients on every GPU. The memory is charged to the user, within the user's limits.
  virtual Result<std::unique_ptr<Arena>> Make(const std::string& gpu_uuid, Backend backend, Sharing sharing,
                                              const BatchLayout& layout, uint32_t slot_count, uid_t user) = 0;
  // An arena of one slot that is filled once and that clients on that GPU map for reading only (kVmmFd).
  virtual Result<std::unique_ptr<Arena>> MakeResident(const std::string& gpu_uuid, const BatchLayout& layout,
                                                      uid_t user) = 0;
  // Whose arenas on that GPU would have to end before one of `bytes` fits into its budget. kNever for an
  // unknown GPU.
  virtual MemoryBudget::Room RoomFor(const std::string& gpu_uuid, uint64_t bytes, uid_t user) const = 0;
  // Checks that the daemon could detect the end of the process's work on that GPU, which cuda-ipc requires.
  // kFailedPrecondition says why it could not. kResourceExhausted: too much memory of dead clients is in
  // quarantine. May block briefly.
  virtual Status CheckIpcClient(const std::string& gpu_uuid, pid_t pid) const = 0;
  // Waits until no memory of dead clients is in quarantine, at most until `deadline`.
  virtual void AwaitEmptyQuarantine(std::chrono::steady_clock::time_point deadline) = 0;
  virtual std::vector<GpuSnapshot> Snapshot() const = 0;
  // The step that currently frees memory of dead clients, if any.
  virtual std::optional<OngoingOperation> CurrentOperation() const = 0;
  // Memory used per user, for users with any.
  struct UserBytes {
    uint64_t pinned = 0;
    uint64_t device = 0;  // on all GPUs
  };
  virtual std::map<uid_t, UserBytes> UsedByUser() const = 0;
  // The limits per user: for all pinned memory, and for the GPU with the lowest limit.
  virtual UserBytes MaxPerUser() const = 0;
};

struct DeviceOptions {
  uint64_t pinned_bytes = 0;  // host memory to pin at the start
  MemorySize gpu_bytes;       // per GPU, for arenas
  // Limits per user.
  MemorySize user_pinned_bytes{0, 1};
  MemorySize user_gpu_bytes{0, 1};
  unsigned threads = 1;  // number of threads that fault in pinned memory
  // Called when a GPU's context is broken, from any thread and possibly more than once.
  std::function<void(const Status&)> on_failure;
  // Called with the bytes faulted in so far, often and from several threads concurrently.
  std::function<void(uint64_t bytes, uint64_t total)> on_progress;
};

// kUnavailable, with the reason, when this machine or this build has no GPU support. The daemon then serves
// host memory. Other errors are faults that the operator must see.
Result<std::unique_ptr<DeviceArenas>> MakeDeviceArenas(const DeviceOptions& options, MemoryBudget& pool);

}  // namespace pinfeed
