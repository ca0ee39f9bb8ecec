// SPDX-License-Identifier: Apache-2.0
#include "client/src/memory/session_pages.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "client/src/memory/session_memory.h"

namespace pinfeed {
namespace {

// Between checks that an evicting daemon is still there.
constexpr std::chrono::milliseconds kLimitLook(50);

}  // namespace

SessionPages::SessionPages(const FeedOffer& offer, const Lifeline& lifeline, Mapping publish, Mapping release,
                           UniqueFd doorbell)
    : offer_(offer),
      lifeline_(lifeline),
      publish_(std::move(publish)),
      release_(std::move(release)),
      doorbell_(std::move(doorbell)),
      reader_(publish_page(), offer.slot_count, offer.layout.batch_size) {}

bool SessionPages::HasNext() const {
  return publish_page().published.load(std::memory_order_acquire) !=
         next_sequence_.load(std::memory_order_relaxed);
}

Result<bool> SessionPages::Take(BatchDescriptor* batch) {
  const PublishPage& page = publish_page();
  const uint64_t expected = next_sequence_.load(std::memory_order_relaxed);
  BatchDescriptor copy;
  ASSIGN_OR_RETURN(const bool published, reader_.Read(expected, &copy));
  if (!published) return false;
  if (slot_held_[copy.slot].load(std::memory_order_acquire)) {
    return BrokenSession("batch " + std::to_string(expected) + " lies in slot " + std::to_string(copy.slot) +
                         ", which this process still holds");
  }
  // Orders against an eviction: either the daemon sees that this batch is held, or the limit is seen here.
  release_page().taken.store(expected + 1, std::memory_order_seq_cst);
  if (page.state.load(std::memory_order_seq_cst) == static_cast<uint32_t>(FeedState::kEvicted)) {
    if (!KnowsLimit()) return false;
    if (expected >= page.limit.load(std::memory_order_acquire)) return Failure();
  }
  next_sequence_.store(expected + 1, std::memory_order_seq_cst);  // orders against Release, see there
  slot_held_[copy.slot].store(true, std::memory_order_relaxed);
  held_.fetch_add(1, std::memory_order_relaxed);
  *batch = copy;
  return true;
}

Status SessionPages::GiveBack(const BatchDescriptor& batch) {
  if (batch.sequence + 1 != next_sequence_.load(std::memory_order_relaxed))
    return FailedPrecondition("give a batch back: another one was taken since");
  next_sequence_.store(batch.sequence, std::memory_order_relaxed);
  slot_held_[batch.slot].store(false, std::memory_order_relaxed);
  release_page().taken.store(batch.sequence, std::memory_order_seq_cst);
  held_.fetch_sub(1, std::memory_order_release);
  return OkStatus();
}

bool SessionPages::KnowsLimit() const {
  // A daemon that is gone fills no more batches.
  return publish_page().limit.load(std::memory_order_acquire) != kUnlimited || lifeline_.HungUp();
}

uint64_t SessionPages::AwaitLimit(SteadyTime deadline) const {
  for (;;) {
    const uint32_t seen = WakeWord();
    const auto left = deadline - std::chrono::steady_clock::now();
    if (KnowsLimit() || left <= left.zero()) return publish_page().limit.load(std::memory_order_acquire);
    Sleep(seen, std::min<std::chrono::nanoseconds>(left, kLimitLook));
  }
}

Status SessionPages::Failure() const {
  const PublishPage& page = publish_page();
  const uint32_t bytes = std::min(page.error_bytes, kMaxErrorBytes);
  return {ErrorCodeOf(page.error_code, Code::kInternal), std::string(page.error_text, bytes)};
}

void SessionPages::Release(const BatchDescriptor& batch) {
  BeginReturn(batch);
  // Sequentially consistent, against the daemon's "set starved, then read the words": one of the two sees the
  // other's store.
  release_page().slots[batch.slot].generation.store(batch.generation, std::memory_order_seq_cst);
  // Rings only when fewer than half of the slots are ahead of the trainer, since ringing for several slots at
  // once wakes the daemon less often. BeginWait rings before the trainer sleeps, and sees this word if the
  // count of taken batches read here is stale. Sessions that share slots always ring, because the others may
  // be waiting for this one.
  const uint64_t ahead = publish_page().published.load(std::memory_order_relaxed) -
                         next_sequence_.load(std::memory_order_seq_cst);
  if (offer_.read_only || ahead <= offer_.slot_count / 2) RingIfStarved();
  EndReturn();
}

void SessionPages::BeginReturn(const BatchDescriptor& batch) {
  // Before the release word: once the daemon sees that word, it may publish the slot again.
  slot_held_[batch.slot].store(false, std::memory_order_release);
}

void SessionPages::CancelReturn(const BatchDescriptor& batch) {
  slot_held_[batch.slot].store(true, std::memory_order_relaxed);
}

void SessionPages::EndReturn() {
  held_.fetch_sub(1, std::memory_order_release);  // last: afterwards the session may unmap
}

void SessionPages::RingIfStarved() {
  if (publish_page().starved.load(std::memory_order_seq_cst) == 0) return;
  const uint64_t one = 1;
  // EAGAIN means that the doorbell is ringing already.
  [[maybe_unused]] const ssize_t rung = ::write(doorbell_.get(), &one, sizeof(one));
}

void SessionPages::BeginWait(uint64_t now_ns) {
  // Before the ring, sequentially consistent: a batcher's daemon gives a batch to a session that waits.
  release_page().waiting_since_ns.store(now_ns, std::memory_order_seq_cst);
  RingIfStarved();
}

void SessionPages::EndWait(uint64_t waited_ns) {
  wait_ns_ += waited_ns;
  release_page().wait_ns.store(wait_ns_, std::memory_order_relaxed);
  release_page().waiting_since_ns.store(0, std::memory_order_relaxed);
}

void SessionPages::CountCopied() {
  release_page().copied.store(++copied_, std::memory_order_relaxed);
}

void SessionPages::LeakReleasePage() {
  (void)new Mapping(std::move(release_));
}

void SessionPages::LeakPublishPage() {
  (void)new Mapping(std::move(publish_));
}

}  // namespace pinfeed
