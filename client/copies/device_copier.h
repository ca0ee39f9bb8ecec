// SPDX-License-Identifier: Apache-2.0
// Copies memory of this process to a GPU, without a daemon. In: addresses. Out: copies queued on a stream.
// Uses no CUDA types, so that the library also builds without CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "client/copies/staged_bytes.h"
#include "common/base/result.h"

namespace pinfeed {

enum class StreamState { kIdle, kBusy, kCapturing };

// Purpose: copies to one GPU, through a ring of page-locked memory that several threads fill. Sources that
// are page-locked themselves are read by the GPU directly. Owns the ring, the threads, and a share of the
// GPU's primary context. Threads: any. Invariants:
// 1. A pageable source has been read when Copy returns, also when it fails.
// 2. A slot of the ring is filled again only after the GPU has read it.
class DeviceCopier {
 public:
  struct Options {
    uint32_t threads = 0;     // that fill the ring, with the caller; 0: kMaxThreads, but no more than CPUs
    uint64_t ring_bytes = 0;  // at most; 0: kRingBytes
  };
  static constexpr uint32_t kMaxThreads = 16;
  static constexpr uint64_t kRingBytes = uint64_t{64} << 20;
  static constexpr uint64_t kMaxRingBytes = uint64_t{4} << 30;

  virtual ~DeviceCopier() = default;
  // Queues the copies on `stream`, of this GPU. Returns how many page-locked sources the GPU may still read;
  // with `wait` it waits for these, and returns 0. Also waits while the ring is full, so until the stream
  // has done what was queued on it before. Precondition: the ranges are valid memory. kFailedPrecondition:
  // the stream is being captured. After an error nothing reads the sources; the targets are unspecified.
  virtual Result<uint32_t> Copy(std::span<const HostCopy> copies, void* stream, bool wait) = 0;
  // Never waits.
  virtual Result<StreamState> State(void* stream) = 0;
};

// kUnavailable if the build or the process has no CUDA; kInvalidArgument if there is no such GPU. Page-locks
// memory only when it is needed.
Result<std::unique_ptr<DeviceCopier>> MakeDeviceCopier(int ordinal, const DeviceCopier::Options& options);

}  // namespace pinfeed
