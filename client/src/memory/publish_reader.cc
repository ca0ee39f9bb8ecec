// SPDX-License-Identifier: Apache-2.0
#include "client/src/memory/publish_reader.h"

#include <string>

#include "client/src/memory/session_memory.h"
#include "common/os/futex.h"

namespace pinfeed {

Result<bool> PublishReader::Read(uint64_t sequence, BatchDescriptor* batch) const {
  const uint64_t published = page_->published.load(std::memory_order_acquire);
  if (published == sequence) return false;
  // The count is more than the ring holds ahead, or went backwards: the entry is not the expected one.
  if (published - sequence > kMaxSlots) {
    return BrokenSession("the count of batches is " + std::to_string(published) + " where " +
                         std::to_string(sequence) + " were taken");
  }
  // Copied before the check: the page may change at any time.
  const BatchDescriptor copy = page_->ring[sequence % kMaxSlots];
  const auto broken = [sequence](const std::string& how) {
    return BrokenSession("batch " + std::to_string(sequence) + how);
  };
  if (copy.sequence != sequence) return broken(" is described as number " + std::to_string(copy.sequence));
  if (copy.slot >= slot_count_)
    return broken(" lies in slot " + std::to_string(copy.slot) + " of " + std::to_string(slot_count_));
  if (copy.samples > batch_size_) {
    return broken(" has " + std::to_string(copy.samples) + " samples where a slot holds " +
                  std::to_string(batch_size_));
  }
  *batch = copy;
  return true;
}

uint32_t PublishReader::WakeWord() const {
  return page_->wake.load(std::memory_order_acquire);
}

FeedState PublishReader::state() const {
  return static_cast<FeedState>(page_->state.load(std::memory_order_acquire));
}

void PublishReader::Sleep(uint32_t seen, std::chrono::nanoseconds at_most) const {
  FutexWait(page_->wake, seen, at_most);
}

void PublishReader::WakeSleepers() const {
  FutexWakeAll(const_cast<std::atomic<uint32_t>&>(page_->wake));  // which does not write to it
}

}  // namespace pinfeed
