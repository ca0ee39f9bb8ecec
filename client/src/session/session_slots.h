// SPDX-License-Identifier: Apache-2.0
// The slots of a session, in host memory or on a GPU. In: a descriptor of a held batch. Out: its tensors'
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/src/gpu/device_slots.h"
#include "client/src/gpu/host_pins.h"
#include "client/src/gpu/output_memory.h"
#include "client/src/link/offer.h"
#include "common/base/result.h"
#include "common/os/memfd.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: addresses and reads the batches in the arena. Owns: its mapping. Borrows: the offer, which
// outlives it. Threads: any; Unmap and Abandon once no batch is held. Errors: extents of rows are the
// daemon's, and kInternal if they lie outside of their tensor.
class SessionSlots {
 public:
  // `on_device`: null on the host, and `arena` is then the mapping. `ordinal`: of the caller's GPU.
  SessionSlots(const FeedOffer& offer, int ordinal, Mapping arena, std::unique_ptr<DeviceSlots> on_device);

  // The start of a slot; a device address if the batches are on a GPU.
  std::byte* address(uint32_t index) const {
    return (on_device_ != nullptr ? on_device_->address() : arena_.data()) +
           index * offer_.layout.slot_stride;
  }
  // The caller's GPU ordinal, or -1 for the host.
  int device() const { return on_device_ != nullptr ? ordinal_ : -1; }
  DeviceSlots* on_device() const { return on_device_.get(); }

  // Page-locks a slot in host memory for the caller's GPU, if it has one and this is possible. Called by one
  // thread at a time, with a slot that the daemon has filled.
  void Pin(uint32_t index);

  // Copies the outputs. outputs[i] has room for batch_size samples of outputs()[i]; of a packed one, for the
  // batch's rows. Precondition: on the host.
  Status CopyTo(const OutputMemory& outputs, const BatchDescriptor& batch) const;
  // Sets `offsets`, which has an element more than the batch has samples, to the first row of each sample and
  // the number of all, counted in the order of the samples. kInternal: the daemon's extents are wrong. On a
  // device it waits for a copy of its own. The samples `without_rows` count as having none. Precondition: the
  // output is packed.
  Status RowOffsets(const BatchDescriptor& batch, const OfferedOutput& output,
                    std::span<const uint32_t> without_rows, std::span<int64_t> offsets) const;

  // Unmaps the arena once the GPU no longer needs it. After an error (DeviceSlots::Unmap) it stays mapped
  // until the process ends.
  Status Unmap(SteadyTime deadline);
  // Keeps an arena in host memory mapped until the process ends, since a thread still reads it.
  void LeakArena() { (void)new Mapping(std::move(arena_)); }
  // Forgets what belongs to the GPU without giving it back.
  void Abandon() {
    (void)on_device_.release();
    (void)new std::vector(std::move(pins_));
  }

 private:
  // The extents of a packed output's samples, as they lie in the slot, checked.
  Result<std::vector<RowExtent>> Extents(const BatchDescriptor& batch, const OfferedOutput& output) const;
  // On the host: writes the rows of output `number` in the order of the samples, and their new extents.
  Status GatherRows(const BatchDescriptor& batch, size_t number, const OutputMemory& outputs) const;

  const FeedOffer& offer_;
  const int ordinal_;
  Mapping arena_;
  bool pinning_;                                   // slots in host memory are page-locked
  std::vector<std::shared_ptr<const void>> pins_;  // of the slots that are
  std::unique_ptr<DeviceSlots> on_device_;
};

}  // namespace pinfeed
