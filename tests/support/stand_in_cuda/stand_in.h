// SPDX-License-Identifier: Apache-2.0
// A stand-in for the CUDA driver: a libcuda.so.1 (and a libnvidia-ml.so.1, see nvml.cc) in which this
// project's whole GPU path runs on machines without a GPU, and under sanitizers. In: the driver calls of
// PF_CUDA_FUNCTIONS. Out: what the driver documents of them and the project relies on, done on host memory:
// memory that goes between processes as descriptors, read-only mappings, streams that run later on threads of
// their own, errors that stick to a context. It is no emulator: it measures nothing, runs no device code, and
// proves nothing about a GPU.
//
// Where the driver leaves a choice or forgives, this is strict: addresses are checked before every access;
// the source of an asynchronous copy must be registered; memory whose freeing overtakes queued work is an
// illegal address or a crash, for freeing waits for nothing here. All streams are non-blocking ones, the NULL
// stream too, and there are no per-thread ones. A context whose last reference goes is inactive, but what was
// made in it is not freed.
//
// Environment, read by cuInit:
//   PINFEED_STAND_IN_GPUS   how many GPUs there are (1)
//   PINFEED_STAND_IN_BYTES  the memory of each (4 GiB); counted for each process alone
//   PINFEED_STAND_IN_PEERS  1: GPUs can be let read each other's memory (1)
//   PINFEED_STAND_IN_FAIL   "cuMemcpyHtoDAsync:5": its 5th call fails with CUDA_ERROR_UNKNOWN and breaks the
//                           caller's context. "cuMemCreate:1:2": the first fails with error 2 and breaks
//                           nothing. "cuMemUnmap:1:hang": the call never returns. Several are parted by
//                           commas.
//   PINFEED_STAND_IN_STALL  the number of the asynchronous copy from the host that never ends (none)
//   PINFEED_STAND_IN_DIRTY  set: new memory holds noise, as a driver that promises nothing may give
//   PINFEED_STAND_IN_PAGEABLE  set: asynchronous copies take pageable memory, and wait for it
//   PINFEED_STAND_IN_CAPTURING  "here": every stream is being captured. "elsewhere": another thread's is,
//                           and a call in a context by a thread that is not in relaxed mode breaks the
//                           context
//   CUDA_VISIBLE_DEVICES    ordinals, as the driver reads them
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "common/cuda/driver.h"

// The types that cuda.h leaves opaque.

// Purpose: the primary context of one GPU. Never freed. Threads: any.
struct CUctx_st {
  CUdevice device = 0;
  std::atomic<int> references{0};
  std::atomic<CUresult> error{CUDA_SUCCESS};  // the first that stuck; all later calls return it

  void Break(CUresult reason) {
    CUresult none = CUDA_SUCCESS;
    error.compare_exchange_strong(none, reason);
  }
};

// Purpose: a FIFO queue and the thread that works it off. The thread keeps the object alive and ends, after
// the last piece of work, once the stream is closed. Threads: any. Errors: work that fails breaks the
// context; in a broken context work is dropped, as a GPU does.
struct CUstream_st {
  using Work = std::function<CUresult()>;

  static std::shared_ptr<CUstream_st> Start(CUctx_st& context);
  // Its number: 1, 2, ...
  uint64_t Push(Work work);
  uint64_t Pushed();
  bool IsFinished(uint64_t number);
  void Wait(uint64_t number);
  void Close();
  CUctx_st& context() const { return context_; }

 private:
  explicit CUstream_st(CUctx_st& context) : context_(context) {}
  void Run();

  CUctx_st& context_;
  pinfeed::Mutex mutex_;
  pinfeed::CondVar changed_;
  std::deque<Work> queue_ PF_GUARDED_BY(mutex_);
  uint64_t pushed_ PF_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ PF_GUARDED_BY(mutex_) = 0;
  bool closed_ PF_GUARDED_BY(mutex_) = false;
};

// Purpose: a point in a stream: that of the last record. Guarded by the state's mutex.
struct CUevent_st {
  CUctx_st* context = nullptr;
  std::shared_ptr<CUstream_st> stream;  // null: never recorded
  uint64_t number = 0;
};

struct CUfunc_st {
  CUctx_st* context = nullptr;
  unsigned element_bytes = 0;  // of ConvertImage; kGathers: GatherRows; more: LaunchDecoder or kSamples
  static constexpr unsigned kGathers = 8, kSamples = 128;
};

struct CUmod_st {
  CUctx_st* context = nullptr;
  CUfunc_st functions[10];
};

namespace pinfeed::stand_in {

// What the library exports: these and no other. symbols.cc fails to link when one is not defined.
#define PF_STAND_IN_EXPORT(name) extern "C" __attribute__((visibility("default"))) decltype(::name) name;
PF_CUDA_FUNCTIONS(PF_STAND_IN_EXPORT)
// What a framework in the trainer's process calls besides (tests/python/device/stand_in_torch.py).
PF_STAND_IN_EXPORT(cuCtxSynchronize)
#undef PF_STAND_IN_EXPORT

inline constexpr uint64_t kGranularity = uint64_t{2} << 20;

// A file of this name, with "<GPU>-<pid>" behind it, is open in every process that keeps a GPU in use: by
// these the stand-in for NVML knows them.
inline constexpr char kInUsePrefix[] = "pinfeed-gpu-in-use-";
UniqueFd MarkInUse(int physical);

struct Device {
  int physical = 0;  // its ordinal without CUDA_VISIBLE_DEVICES
  CUctx_st context;
  UniqueFd in_use;                      // while the context is; by the state's mutex
  std::atomic<uint64_t> used_bytes{0};  // made by this process
};

// Device memory, mapped or not. The memfd's name says what it is to every process.
struct Allocation {
  UniqueFd memfd;
  uint64_t bytes = 0;
  bool exportable = false;
  Device* maker = nullptr;  // null: imported

  Allocation() = default;
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() {
    if (maker != nullptr) maker->used_bytes -= bytes;
  }
};

enum class Rights { kNone, kRead, kReadWrite };
enum class Origin { kMapped, kAllocated, kOpened };  // by cuMemMap, cuMemAlloc, cuIpcOpenMemHandle

// A piece of address space that device memory lies behind.
struct Region {
  uint64_t bytes = 0;  // as asked for, not rounded
  Origin origin = Origin::kMapped;
  Rights rights = Rights::kNone;         // the widest of any GPU: what the process may do
  std::map<CUdevice, Rights> by_device;  // kMapped
  std::shared_ptr<Allocation> memory;
  std::string opened_name;  // kOpened: the memfd's
  int opens = 0;            // likewise
};

struct Range {
  uint64_t bytes = 0;
};

struct Fault {
  std::string function;
  uint64_t calls_left = 0;
  bool hangs = false;
  std::optional<CUresult> result;  // none: CUDA_ERROR_UNKNOWN, and the context is broken
};

// Purpose: all that this process's stand-in knows. Threads: `devices`, `device_bytes`, `peers`,
// `takes_pageable`, `dirty`, `capturing`, `captured_elsewhere` and `stalled_copy` are constant after cuInit,
// the rest is guarded.
struct State {
  Mutex mutex;
  std::optional<CUresult> initialised PF_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Device>> devices;
  uint64_t device_bytes = 0;
  uint64_t peers = 0;  // not 0: GPUs reach each other
  bool takes_pageable = false;
  uint64_t stalled_copy = 0;  // 0: none
  std::atomic<uint64_t> copies{0};
  bool dirty = false;      // new memory holds noise
  bool capturing = false;  // every stream is being captured
  bool captured_elsewhere = false;
  std::vector<Fault> faults PF_GUARDED_BY(mutex);
  std::map<uint64_t, Range> reserved PF_GUARDED_BY(mutex);
  std::map<uint64_t, Region> regions PF_GUARDED_BY(mutex);
  std::map<uint64_t, Range> registered PF_GUARDED_BY(mutex);  // host memory
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Allocation>> allocations PF_GUARDED_BY(mutex);
  CUmemGenericAllocationHandle next_allocation PF_GUARDED_BY(mutex) = 1;
  std::map<CUstream, std::shared_ptr<CUstream_st>> streams PF_GUARDED_BY(mutex);
  std::map<CUctx_st*, std::shared_ptr<CUstream_st>> null_streams PF_GUARDED_BY(mutex);
  std::map<CUevent, std::unique_ptr<CUevent_st>> events PF_GUARDED_BY(mutex);
  std::map<CUmodule, std::unique_ptr<CUmod_st>> modules PF_GUARDED_BY(mutex);
};
inline State& g_state = *new State;  // leaked on purpose: streams' threads outlive main

// The device of that ordinal, or null.
Device* DeviceOf(CUdevice device);

// What every call starts with: whether the driver is initialised, and whether this call is to fail.
CUresult Enter(const char* function);
// Also: this thread's context, which must be a sound one.
CUresult EnterContext(const char* function, CUctx_st** context);
#define PF_STAND_IN_CALL(name) \
  if (const CUresult refused = ::pinfeed::stand_in::Enter(#name); refused != CUDA_SUCCESS) return refused
#define PF_STAND_IN_CONTEXT_CALL(name)                                                                      \
  CUctx_st* context = nullptr;                                                                              \
  if (const CUresult refused = ::pinfeed::stand_in::EnterContext(#name, &context); refused != CUDA_SUCCESS) \
  return refused

// The stream of that handle in this context; null when there is none. NULL names the context's own queue.
std::shared_ptr<CUstream_st> StreamOf(CUctx_st& context, CUstream handle);

// Whether all of [address, address + bytes) is device memory that may be so accessed.
bool IsDeviceMemory(uint64_t address, uint64_t bytes, Rights rights);
// Likewise, by that GPU.
bool IsReachableFrom(CUdevice device, uint64_t address, uint64_t bytes, Rights rights);
bool IsRegisteredHost(uint64_t address, uint64_t bytes);
// Either: what device code may touch.
bool IsReachable(uint64_t address, uint64_t bytes, Rights rights);

// The entry of an ordered map of pieces that holds the whole range, or end().
template <typename Map>
auto Holding(Map& pieces, uint64_t address, uint64_t bytes) {
  auto found = pieces.upper_bound(address);
  if (found == pieces.begin()) return pieces.end();
  --found;
  const uint64_t offset = address - found->first;
  return offset <= found->second.bytes && bytes <= found->second.bytes - offset ? found : pieces.end();
}

template <typename Map>
bool Overlaps(const Map& pieces, uint64_t address, uint64_t bytes) {
  const auto next = pieces.lower_bound(address);
  if (next != pieces.end() && next->first - address < bytes) return true;
  return next != pieces.begin() && address - std::prev(next)->first < std::prev(next)->second.bytes;
}

inline void* PointerTo(uint64_t address) {
  return reinterpret_cast<void*>(
      address);  // NOLINT(performance-no-int-to-ptr): the driver's addresses are numbers
}
inline uint64_t AddressOf(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

}  // namespace pinfeed::stand_in
