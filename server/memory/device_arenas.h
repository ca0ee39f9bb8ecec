// SPDX-License-Identifier: Apache-2.0
// Arenas in the memory of GPUs, as the rest of the daemon sees them: free of CUDA, so that the core and the
// tests are.
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
#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "common/spec/tensor_spec.h"
#include "server/memory/arena.h"
#include "server/memory/ongoing_operation.h"

namespace pinfeed {

// Memory of clients that ended without a farewell, which their work on the GPU may still touch.
struct QuarantinedMemory {
  Backend backend = Backend::kVmmFd;
  uint64_t bytes = 0;
  std::vector<pid_t> pids;
  double seconds = 0;  // since its feed ended
};

// What status and metrics show of a GPU. Counters only grow.
struct GpuSnapshot {
  std::string uuid;
  std::string name;
  uint64_t arena_capacity_bytes = 0;  // of its memory, for arenas
  uint64_t arena_used_bytes = 0;      // with what lingers
  std::vector<QuarantinedMemory> lingering;
  uint64_t copies = 0;
  uint64_t copied_bytes = 0;  // from the host
  uint64_t peer_bytes = 0;    // from other GPUs
  uint64_t copy_ns = 0;       // the copy stream had something to do
  uint64_t queue_ns = 0;      // filled slots waited for their copy to begin, all together
  uint64_t copy_errors = 0;
  DurationCounts copy_durations;
  // For how long no copy has ended although there was one to make; the one figure here that falls, too.
  std::chrono::nanoseconds stalled{0};
  std::string copy_thread;

  uint64_t lingering_bytes() const {
    uint64_t bytes = 0;
    for (const QuarantinedMemory& piece : lingering) bytes += piece.bytes;
    return bytes;
  }
};

// Purpose: makes arenas on the GPUs that this daemon feeds. Owns: contexts, pinned memory, copy threads.
// Threads: any. Errors: Make says what does not fit, with the numbers. Invariant: outlives its arenas.
class DeviceArenas {
 public:
  virtual ~DeviceArenas() = default;

  // kNotFound, naming the GPUs there are, when it is none of them.
  virtual Status CheckFeeds(const std::string& gpu_uuid) const = 0;
  // `backend` is kVmmFd or kCudaIpc. kNotFound, naming the GPUs there are, when `gpu_uuid` is none of them. A
  // broadcast's arena takes clients on every GPU. It is charged to the user, within what a user may have.
  virtual Result<std::unique_ptr<Arena>> Make(const std::string& gpu_uuid, Backend backend, Sharing sharing,
                                              const BatchLayout& layout, uint32_t slot_count, uid_t user) = 0;
  // Whether the end of the process's work on that GPU could be seen, as lending it a cuda-ipc arena needs;
  // kFailedPrecondition says why not, kResourceExhausted that too much memory of dead clients lingers. May
  // block for a moment.
  virtual Status CheckIpcClient(const std::string& gpu_uuid, pid_t pid) const = 0;
  // Until no memory of dead clients lingers, at most until `deadline`.
  virtual void AwaitLingering(std::chrono::steady_clock::time_point deadline) = 0;
  virtual std::vector<GpuSnapshot> Snapshot() const = 0;
  // What gives back memory of dead clients right now.
  virtual std::optional<OngoingOperation> CurrentChore() const = 0;
  // What users have, of those that have something.
  struct UserBytes {
    uint64_t pinned = 0;
    uint64_t device = 0;  // on all GPUs together
  };
  virtual std::map<uid_t, UserBytes> UsedByUser() const = 0;
  // What a user may have of all pinned memory, and of the GPU that gives the least.
  virtual UserBytes MaxPerUser() const = 0;
};

struct DeviceOptions {
  uint64_t pinned_bytes = 0;  // host memory to pin at the start
  uint64_t gpu_bytes = 0;     // of each GPU's memory, for arenas; 0: `gpu_share` of it
  double gpu_share = 0;
  // What a user may have of each: bytes, or if those are 0, a share.
  uint64_t user_pinned_bytes = 0;
  double user_pinned_share = 1;
  uint64_t user_gpu_bytes = 0;
  double user_gpu_share = 1;
  unsigned threads = 1;  // that fault the pinned memory in
  // A GPU is of no more use (its context is broken); called from any thread, more than once if
  // need be.
  std::function<void(const Status&)> on_failure;
  // So many of `total` bytes are faulted in; called often, from several threads at once.
  std::function<void(uint64_t bytes, uint64_t total)> on_progress;
};

// kUnavailable, with the reason, when this machine (or this build) has no GPU: the daemon then serves host
// memory. Other errors are faults that the operator wants to know of.
class MemoryBudget;
Result<std::unique_ptr<DeviceArenas>> MakeDeviceArenas(const DeviceOptions& options, MemoryBudget& pool);

}  // namespace pinfeed
