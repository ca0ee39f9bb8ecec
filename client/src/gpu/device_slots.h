// SPDX-License-Identifier: Apache-2.0
// The slots of a session on a GPU. In: the daemon's descriptor. Out: tensors in the trainer's own memory, and
// releases, both in the order of the trainer's stream. Uses no CUDA types, so that the library also builds
// without CUDA.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "client/src/base/unix_socket.h"
#include "client/src/gpu/output_memory.h"
#include "client/src/link/offer.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: the mapped arena of one session. Owns: the mapping, the release page's registration with the
// driver, a share of the GPU's primary context. Borrows: the release page, which outlives it. Threads: any.
// Errors: the driver's; after one the slot is not returned. Streams are CUstreams of the primary context;
// NULL is its default stream. Precondition of destruction: Unmap returned OK, or nothing was ever queued on a
// stream.
class DeviceSlots {
 public:
  virtual ~DeviceSlots() = default;

  // The device address of slot 0.
  virtual std::byte* address() const = 0;
  // Queues on `stream` the writing of every output to outputs[i] (device memory for batch_size samples), then
  // the release of the slot. On an error it waits until nothing that it queued runs any more.
  virtual Status Write(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream) = 0;
  // Queues the release of the batch's slot on `stream`, so that earlier work may still read it. Returns
  // kCancelled if the driver has shut down with the process.
  virtual Status Release(const BatchDescriptor& batch, void* stream) = 0;
  // Copies the bytes at `offset` in the arena to host memory. Waits for this copy only, not for the trainer's
  // streams. Precondition: they lie within a slot that the caller holds.
  virtual Status Read(uint64_t offset, std::span<std::byte> out) = 0;
  // Waits until the GPU has executed every queued release, then unmaps the arena. On an error the arena stays
  // mapped until the process ends, and the GPU may still write to the release page. Returns kDeadlineExceeded
  // if a release is not executed by `deadline`. Returns the driver's error as soon as the context is broken,
  // since queued work then never runs.
  virtual Status Unmap(SteadyTime deadline) = 0;
};

// Maps the arena (read-only if other sessions share it) and checks its id; kInternal if the id differs. With
// vmm-fd, `fd` is the daemon's descriptor, which is closed. Returns kUnavailable if the build or the process
// has no CUDA. On an error nothing stays mapped.
Result<std::unique_ptr<DeviceSlots>> MapDeviceSlots(const FeedOffer& offer, int ordinal, UniqueFd fd,
                                                    ReleasePage* release_page, size_t release_page_bytes);

// Returns the UUID by which the daemon knows GPU `ordinal` of this process.
Result<std::string> GpuUuid(int ordinal);
// Keeps the process's context on the GPU alive, which shows the daemon that the process uses it. A forked
// child must not release it.
Result<std::shared_ptr<const void>> HoldGpu(int ordinal);

}  // namespace pinfeed
