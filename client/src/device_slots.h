// SPDX-License-Identifier: Apache-2.0
// The slots of a session on a GPU. In: the daemon's descriptor. Out: tensors in the trainer's own memory, and
// releases, both in the order of the trainer's stream. Free of CUDA, so that the library is built without,
// too.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "client/src/offer.h"
#include "client/src/unix_socket.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: the mapped arena of one session. Owns: the mapping, the registration of the release page with the
// driver, a share of the GPU's primary context. Borrows: the release page, which outlives it. Threads: any.
// Errors: those of the driver; after one the slot is not given back. Streams are CUstreams of the primary
// context; NULL is its default stream. Precondition of destruction: Unmap gave OK, or nothing was ever put on
// a stream.
class DeviceSlots {
 public:
  virtual ~DeviceSlots() = default;

  // Where the GPU sees the first byte of slot 0.
  virtual std::byte* address() const = 0;
  // Puts on `stream`: every output of the batch written to outputs[i] (device memory, batch_size samples
  // long), then the release of its slot. On an error nothing that it put there still runs: it waits for that.
  virtual Status Write(const BatchDescriptor& batch, void* const* outputs, void* stream) = 0;
  // Puts the release of the batch's slot on `stream`: what was put there before may still read it. kCancelled
  // when the driver has shut down with the process.
  virtual Status Release(const BatchDescriptor& batch, void* stream) = 0;
  // Waits until the GPU has done every release that was put on a stream, then unmaps the arena. An error
  // means that it is mapped until this process ends, and that the GPU may still write to the release page:
  // kDeadlineExceeded when it has not got there by `deadline`; the driver's own as soon as it says that the
  // context is broken, in which nothing that was put on a stream will ever be done.
  virtual Status Unmap(SteadyTime deadline) = 0;
};

// Maps the arena (for reading only when other sessions share it) and reads its id back: kInternal when it is
// another one. `fd` is the daemon's descriptor, with vmm-fd; it is closed. kUnavailable when this build or
// this process has no CUDA. On an error nothing is mapped.
Result<std::unique_ptr<DeviceSlots>> MapDeviceSlots(const FeedOffer& offer, int ordinal, UniqueFd fd,
                                                    ReleasePage* release_page, size_t release_page_bytes);

// The name under which the daemon knows the GPU that is `ordinal` in this process.
Result<std::string> GpuUuid(int ordinal);
// Keeps this process's context on the GPU: the daemon sees thereby that the process is there. Not to be let
// go of by a forked child.
Result<std::shared_ptr<const void>> HoldGpu(int ordinal);

}  // namespace pinfeed
