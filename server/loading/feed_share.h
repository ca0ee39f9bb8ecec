// SPDX-License-Identifier: Apache-2.0
// How much of the host's loading a feed has had: what the pools' fairness compares.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace pinfeed {

// The threads that load samples: workers decode, and read from local storage; readers read from storages that
// may be slow, and ask the local one to read ahead.
enum class PoolKind { kWorkers, kReaders };

// Purpose: the work that a feed was given, by pool, and the batches that it has ready; each pool serves the
// feed with the smallest sum first. One a feed; outlives the feed and its tasks. Threads: any.
struct FeedShare {
  static constexpr uint64_t kSmallBatchNs = 100'000;
  static constexpr uint32_t kFewWorkers = 4;
  static constexpr std::chrono::seconds kShortMemory{60};

  // What one pool has done for the feed. Apart for each pool: a feed that waits long for its storage is not
  // to wait for workers because of it.
  struct PoolShare {
    static constexpr uint64_t kUnknownBatchNs = 10'000'000;

    // The pool's time spent on this feed, raised to the level of the others when the feed becomes active.
    std::atomic<uint64_t> served_ns{0};
    std::atomic<uint64_t> worked_ns{0};               // the pool's time spent on this feed
    std::atomic<uint64_t> batch_ns{kUnknownBatchNs};  // of that, what a batch takes, the latest counting most
    // Threads of the pool that load for it right now. Written under the pool's lock.
    std::atomic<uint32_t> running{0};
    std::atomic<uint32_t> finishing{0};  // of these, those that call a task's Done, and then look for more

    // Sets batch_ns. `batches`: published so far. One thread at a time.
    void CountBatches(uint64_t batches) {
      const uint64_t worked = worked_ns.load(std::memory_order_relaxed);
      if (batches == counted_batches_ || worked - counted_ns_ < kCountedNs) return;
      const uint64_t latest = (worked - counted_ns_) / (batches - counted_batches_);
      const uint64_t before = counted_batches_ == 0 ? latest : batch_ns.load(std::memory_order_relaxed);
      batch_ns.store((kOlder * before + latest) / (kOlder + 1), std::memory_order_relaxed);
      counted_batches_ = batches;
      counted_ns_ = worked;
    }

   private:
    static constexpr uint64_t kCountedNs = 1'000'000;  // so that a short time says something
    static constexpr uint64_t kOlder = 7;              // the weight of what was known
    uint64_t counted_batches_ = 0;
    uint64_t counted_ns_ = 0;
  };

  explicit FeedShare(uid_t user = 0, uint64_t feed_id = 0, uint32_t at_most = UINT32_MAX)
      : owner(user), feed(feed_id), max_workers(at_most) {}

  PoolShare& In(PoolKind pool) { return pool == PoolKind::kWorkers ? workers : readers; }
  const PoolShare& In(PoolKind pool) const { return pool == PoolKind::kWorkers ? workers : readers; }

  // The time that the feed was served plus what its ready batches cost. Feeds that want all they can get are
  // served alike, whatever their trainers hold. A feed that is ahead waits for the others, at most as long as
  // they take to fill what it has.
  uint64_t Got(PoolKind pool) const {
    const PoolShare& share = In(pool);
    return share.served_ns.load(std::memory_order_relaxed) +
           ready.load(std::memory_order_relaxed) * share.batch_ns.load(std::memory_order_relaxed);
  }
  // The workers that may load for it at once. Small batches are filled faster by a few that go from one to
  // the next than by many that wake for each and wait for one another's locks (docs/decisions/0053).
  uint32_t MaxWorkers() const {
    const bool small = workers.batch_ns.load(std::memory_order_relaxed) < kSmallBatchNs;
    return small ? std::min(max_workers, kFewWorkers) : max_workers;
  }
  // A large sample has to wait for memory. Returns whether it was not short before.
  bool WaitForMemory() {
    waited_for_memory = std::chrono::steady_clock::now().time_since_epoch().count();
    return !memory_is_short.exchange(true);
  }
  // A sample was loaded without waiting.
  void HadMemory() {
    if (!memory_is_short) return;
    const std::chrono::steady_clock::duration waited(waited_for_memory);
    if (std::chrono::steady_clock::now().time_since_epoch() - waited > kShortMemory) memory_is_short = false;
  }
  // Of both pools.
  uint64_t WorkedNs() const {
    return workers.worked_ns.load(std::memory_order_relaxed) +
           readers.worked_ns.load(std::memory_order_relaxed);
  }
  uint32_t Running() const {
    return workers.running.load(std::memory_order_relaxed) + readers.running.load(std::memory_order_relaxed);
  }

  const uid_t owner;           // of the feed
  const uint64_t feed;         // its id
  const uint32_t max_workers;  // so that processors stay free; see MaxWorkers
  // Batches published and not yet released: the fewer, the nearer the feed is to starving.
  std::atomic<uint32_t> ready{0};
  // A large sample of it had to wait for memory that others had, within kShortMemory. Feeds of which this is
  // true may have half of the workers together, so that others do not wait for those that wait, and the
  // workers keep no buffers of their samples.
  std::atomic<bool> memory_is_short{false};
  std::atomic<std::chrono::steady_clock::rep> waited_for_memory{0};  // when that was last
  PoolShare workers;
  PoolShare readers;
  std::atomic<uint32_t> users{0};  // the feed and its tasks, until all they own is destroyed

  // Blocks until neither the feed nor a task of it is left.
  void AwaitUsers() const {
    for (uint32_t left = users.load(); left != 0; left = users.load()) users.wait(left);
  }
};

// Purpose: counts one user of a share. It is the first member of its class, so that it is destroyed last.
class FeedShareUse {
 public:
  explicit FeedShareUse(std::shared_ptr<FeedShare> share) : share_(std::move(share)) {
    share_->users.fetch_add(1);
  }
  ~FeedShareUse() {
    share_->users.fetch_sub(1);
    share_->users.notify_all();
  }
  FeedShareUse(const FeedShareUse&) = delete;
  FeedShareUse& operator=(const FeedShareUse&) = delete;

  const std::shared_ptr<FeedShare>& share() const { return share_; }
  FeedShare* get() const { return share_.get(); }
  FeedShare* operator->() const { return get(); }
  FeedShare& operator*() const { return *share_; }

 private:
  const std::shared_ptr<FeedShare> share_;
};

}  // namespace pinfeed
