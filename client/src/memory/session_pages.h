// SPDX-License-Identifier: Apache-2.0
// The protocol on a session's shared pages. In: what the daemon publishes. Out: checked descriptors of
// batches; releases.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "client/src/link/lifeline.h"
#include "client/src/link/offer.h"
#include "client/src/memory/publish_reader.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/os/memfd.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: takes batches, returns their slots, and waits for the daemon. Owns: both pages and the doorbell.
// Borrows: the offer and the lifeline, which outlive it. Threads: Release, BeginReturn, EndReturn and held
// from any; the rest from the feed's thread. Errors: nothing the daemon writes is trusted; an impossible
// descriptor is kInternal. Invariants: 1. batches are taken in sequence, none twice unless it was given back;
// 2. a slot's release word gets the generation of the batch taken from it, once.
class SessionPages {
 public:
  SessionPages(const FeedOffer& offer, const Lifeline& lifeline, Mapping publish, Mapping release,
               UniqueFd doorbell);

  // Returns true and the next batch, now held; false if none is published, or may be taken yet. An error says
  // why the session was evicted, or that the daemon is broken.
  Result<bool> Take(BatchDescriptor* batch);
  // Undoes the latest Take. kFailedPrecondition if it was of another batch.
  Status GiveBack(const BatchDescriptor& batch);
  bool HasNext() const;
  // Acquire: a Take that follows sees all batches published before the state was set.
  FeedState state() const { return reader_.state(); }
  // Why the feed failed or the session was evicted. Precondition: state() says so.
  Status Failure() const;

  // Returns the slot. Never blocks. On a device, no queued work may read it any more.
  void Release(const BatchDescriptor& batch);
  // Where the GPU writes the release word: BeginReturn before that is queued, EndReturn once it is.
  // CancelReturn if it could not be queued.
  void BeginReturn(const BatchDescriptor& batch);
  void CancelReturn(const BatchDescriptor& batch);
  void EndReturn();
  // The number of batches taken and not released. Once it is 0, no other thread touches the pages or slots.
  uint32_t held() const { return held_.load(std::memory_order_acquire); }

  // For reading ahead. It borrows the publish page alone.
  const PublishReader& reader() const { return reader_; }
  // The number of the next batch to take.
  uint64_t next() const { return next_sequence_.load(std::memory_order_relaxed); }
  uint32_t WakeWord() const { return reader_.WakeWord(); }
  void Sleep(uint32_t seen, std::chrono::nanoseconds at_most) const { reader_.Sleep(seen, at_most); }
  // Whether the daemon has said which batches an evicted session may still take, or is gone. Take waits for
  // it.
  bool KnowsLimit() const;
  // For a session that is evicted or leaves: the first sequence number that is not its own. The daemon writes
  // it at once. Returns kUnlimited if the daemon is gone or has not written it by `deadline`.
  uint64_t AwaitLimit(SteadyTime deadline) const;

  // Counts the trainer's waiting, for `pinfeed status`. Call BeginWait before sleeping: it also signals
  // releases that did not ring the doorbell, and asks a batcher for a batch.
  void BeginWait(uint64_t now_ns);
  void EndWait(uint64_t waited_ns);
  // Counts a batch that was copied because the trainer holds too many slots.
  void CountCopied();

  // Keeps the release page mapped until the process ends, since the GPU will still write there. No other call
  // may follow.
  void LeakReleasePage();
  // Keeps the publish page mapped until the process ends, since a thread still reads it.
  void LeakPublishPage();

 private:
  void RingIfStarved();
  const PublishPage& publish_page() const { return *reinterpret_cast<const PublishPage*>(publish_.data()); }
  ReleasePage& release_page() const { return *reinterpret_cast<ReleasePage*>(release_.data()); }

  const FeedOffer& offer_;
  const Lifeline& lifeline_;
  Mapping publish_;
  Mapping release_;
  const UniqueFd doorbell_;
  const PublishReader reader_;

  std::atomic<uint64_t> next_sequence_{0};  // written by the feed's thread only
  uint64_t wait_ns_ = 0;                    // used by the feed's thread only
  uint64_t copied_ = 0;                     // batches that the trainer got as copies
  std::atomic<uint32_t> held_{0};
  std::array<std::atomic<bool>, kMaxSlots> slot_held_{};
};

}  // namespace pinfeed
