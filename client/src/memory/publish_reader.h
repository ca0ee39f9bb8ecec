// SPDX-License-Identifier: Apache-2.0
// Reads the batches that a daemon announces. In: a session's publish page. Out: checked descriptors.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/base/result.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: reads descriptors without taking the batches. Copyable. Borrows the page, which outlives it.
// Threads: any. Errors: nothing the daemon writes is trusted; an impossible descriptor is kInternal.
class PublishReader {
 public:
  // Of an arena with `slot_count` slots, each for `batch_size` samples.
  PublishReader(const PublishPage& page, uint32_t slot_count, uint32_t batch_size)
      : page_(&page), slot_count_(slot_count), batch_size_(batch_size) {}

  // Returns true and the descriptor of the batch with this number; false if it is not published.
  // Precondition: the batch has not been taken.
  Result<bool> Read(uint64_t sequence, BatchDescriptor* batch) const;

  // A word that changes with each publish and each change of state. To wait: read it, look for batches, then
  // Sleep with the value read.
  uint32_t WakeWord() const;
  void Sleep(uint32_t seen, std::chrono::nanoseconds at_most) const;
  // Of the session, whose batches may yet be read; see FeedState.
  FeedState state() const;
  // Ends the current Sleep of every thread.
  void WakeSleepers() const;

 private:
  const PublishPage* page_;
  uint32_t slot_count_;
  uint32_t batch_size_;
};

}  // namespace pinfeed
