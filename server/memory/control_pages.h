// SPDX-License-Identifier: Apache-2.0
// The daemon's side of a session's two shared pages and doorbell. In: finished batches. Out: descriptors for
// the client, and the client's releases.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/os/futex.h"
#include "common/os/memfd.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: publishes batches to one session and reads its releases.
// Owns: both memfds, their mappings, and the doorbell eventfd.
// Threads: the caller serialises the writing methods (Publish, SetState, Fail, Evict, SetStarved) with the
// feed's lock. Reads are allowed from any thread.
// Errors: none after creation. Values written by the client are only compared, never used as an index or a
// length.
// Invariants:
// 1. The published count, state and limit are kept in private memory and never read back from the page.
// 2. A descriptor is complete before the count that includes it is visible (I2).
class ControlPages {
 public:
  static Result<std::unique_ptr<ControlPages>> Create(uint32_t slot_count);

  int publish_fd() const { return publish_fd_.get(); }
  int release_fd() const { return release_fd_.get(); }
  // Watch it edge-triggered and never read it: the client shares its file status flags and could make a read
  // block.
  int doorbell_fd() const { return doorbell_.get(); }

  // Stores the descriptor with its sequence number, and increases the count. Returns whether WakeClient is to
  // follow, which may be later and without a lock. Does nothing unless the state is kRunning.
  bool Publish(const BatchDescriptor& descriptor);
  // Wakes a client that sleeps. Threads: any.
  void WakeClient() { FutexWakeAll(publish_page()->wake); }
  // kFailed, kEnded and kEvicted are final: SetState and Fail then do nothing.
  void SetState(FeedState state);
  // Sets kFailed with the error's code and (truncated) message.
  void Fail(const Status& error);
  // Sets kEvicted in any state, final ones included. Sets the error too, except in a failed session, which
  // keeps its own. Returns how many published batches the client reports as taken, and makes that the limit:
  // the client can take no others. Later calls return the same number.
  uint64_t Evict(const Status& error);
  // Starved: the feed lacks free slots, although it could fill one. So the client must ring the doorbell when
  // it releases one.
  void SetStarved(bool starved);

  uint64_t published() const { return published_.load(std::memory_order_relaxed); }
  FeedState state() const { return state_; }
  // The release word that the client wrote for the slot: a generation, or any other value. Precondition: slot
  // < kMaxSlots.
  uint64_t Released(uint32_t slot) const;

  // The id of the session that owns the pages, for tracing.
  void set_session(uint64_t id) { session_.store(id, std::memory_order_relaxed); }
  uint64_t session() const { return session_.load(std::memory_order_relaxed); }

  // Statistics reported by the client; not trusted.
  struct ClientStats {
    uint64_t taken = 0;
    uint64_t wait_ns = 0;
    uint64_t waiting_since_ns = 0;
    uint64_t copied = 0;
  };
  ClientStats Stats() const;

 private:
  ControlPages(UniqueFd publish_fd, Mapping publish, UniqueFd release_fd, Mapping release, UniqueFd doorbell,
               uint32_t slot_count);
  bool IsFinal() const;
  void SetError(const Status& error);
  void Wake();
  PublishPage* publish_page() const { return reinterpret_cast<PublishPage*>(publish_.data()); }
  const ReleasePage* release_page() const { return reinterpret_cast<const ReleasePage*>(release_.data()); }

  UniqueFd publish_fd_;
  Mapping publish_;
  UniqueFd release_fd_;
  Mapping release_;
  UniqueFd doorbell_;
  std::atomic<uint64_t> published_{0};  // status reads it on other threads
  std::atomic<uint64_t> session_{0};
  FeedState state_ = FeedState::kRunning;
  uint64_t limit_ = kUnlimited;  // the client may take batches with lower sequence numbers only
};

}  // namespace pinfeed
