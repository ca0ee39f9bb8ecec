// SPDX-License-Identifier: Apache-2.0
// The samples of a feed in memory of the caller's GPU. In: the daemon's descriptor; lists of samples. Out:
// tensors in the trainer's own memory, in the order of its stream. Uses no CUDA types, so that the library
// also builds without CUDA.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "client/src/base/unix_socket.h"
#include "client/src/gpu/output_memory.h"
#include "client/src/link/offer.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: the mapped samples of one session. Owns: the mapping, which is for reading only, and a ring of
// page-locked memory for lists. Threads: any. Errors: the driver's. Streams are CUstreams of the primary
// context; NULL is its default stream. Invariant: a list is overwritten only once the GPU has read it.
class ResidentSamples {
 public:
  virtual ~ResidentSamples() = default;
  // Whether the ring has memory for one more list than those of `taken` batches, which are not written yet.
  // Write then does not wait. Otherwise the trainer is that far ahead of its GPU. True with a broken context:
  // Write returns the error.
  virtual bool HasRoom(uint32_t taken) = 0;
  // Waits until there is room, at most so long.
  virtual void AwaitRoom(uint32_t taken, std::chrono::nanoseconds at_most) = 0;
  // Queues the writing of every output to outputs[i] (device memory for batch_size samples) on `stream`. The
  // list, which another process may change, is copied. Afterwards the slot can be released. On an error
  // nothing that was queued runs any more.
  virtual Status Write(std::span<const std::byte> indexes, uint64_t epoch, const OutputMemory& outputs,
                       void* stream) = 0;
  // Waits until the GPU has executed everything that was queued, then unmaps the samples. On an error
  // (kDeadlineExceeded, or that of a broken context) they stay mapped until the process ends, and the object
  // must be left to that.
  virtual Status Unmap(SteadyTime deadline) = 0;
};

// Maps the samples of an offer and checks their id; kInternal if that differs. `fd` is the daemon's. On an
// error nothing stays mapped. The offer is copied.
Result<std::unique_ptr<ResidentSamples>> MapResidentSamples(const FeedOffer& offer, int ordinal, UniqueFd fd);

}  // namespace pinfeed
