// SPDX-License-Identifier: Apache-2.0
// A client that reads a feed's pages in this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "common/os/memfd.h"
#include "server/feed/feed.h"
#include "tests/support/testing.h"
#include "tests/unit/feed/number_dataset.h"

namespace pinfeed {

// What a client process would do with its pages, step by step. Its process ends with it.
class PageClient {
 public:
  explicit PageClient(Feed& feed)
      : feed_(feed),
        publish_(Mapping::Map(participant_.pages->publish_fd(), kPublishPageBytes, Access::kReadOnly, false)
                     .value()),
        release_(Mapping::Map(participant_.pages->release_fd(), kReleasePageBytes, Access::kReadWrite, false)
                     .value()),
        arena_(Mapping::Map(feed.arena().fd(), feed.arena().bytes(), Access::kReadOnly, false).value()) {}
  ~PageClient() {
    if (participant_.role != Participant::Role::kNone) feed_.Depart(participant_, {});
  }
  PageClient(const PageClient&) = delete;
  PageClient& operator=(const PageClient&) = delete;

  Participant& participant() { return participant_; }
  // The same, which wants batches from `start` on.
  Participant& From(const std::optional<Sampler::Start>& start) {
    participant_.start = start;
    return participant_;
  }
  const PublishPage& page() const { return *reinterpret_cast<const PublishPage*>(publish_.data()); }
  ReleasePage& words() const { return *reinterpret_cast<ReleasePage*>(release_.data()); }
  FeedState state() const { return static_cast<FeedState>(page().state.load(std::memory_order_acquire)); }
  uint64_t ready() const { return page().published.load(std::memory_order_acquire) - taken_; }

  // Begins to wait for a batch, as the client library does: a batcher then gives one. Next ends it.
  void Wait(Feed& feed, uint64_t since_ns = 1) {
    words().waiting_since_ns.store(since_ns, std::memory_order_seq_cst);
    if (page().starved.load(std::memory_order_seq_cst) != 0) feed.ReadReleases();
  }
  // The next batch, once it is there; nothing when the feed ended, failed or drained before, or evicted us.
  std::optional<BatchDescriptor> Next() {
    for (;;) {
      const bool final = state() != FeedState::kRunning;
      if (ready() > 0) {
        const BatchDescriptor batch = page().ring[taken_++ % kMaxSlots];
        words().waiting_since_ns.store(0, std::memory_order_seq_cst);
        words().taken.store(taken_, std::memory_order_seq_cst);
        if (page().state.load(std::memory_order_seq_cst) == static_cast<uint32_t>(FeedState::kEvicted)) {
          while (page().limit.load(std::memory_order_acquire) == kUnlimited) std::this_thread::yield();
          if (batch.sequence >= page().limit.load(std::memory_order_relaxed)) return std::nullopt;
        }
        return batch;
      }
      if (final) return std::nullopt;
      std::this_thread::yield();  // the watchdog ends a test that never gets here
    }
  }
  // Of the batch's samples.
  std::span<const std::byte> Tensor(const BatchDescriptor& batch, size_t tensor) const {
    const TensorPlace& place = feed_.layout().tensors[tensor];
    return {arena_.data() + batch.slot * feed_.arena().slot_stride() + place.offset,
            batch.samples * place.sample_bytes};
  }
  const int64_t* Data(const BatchDescriptor& batch) const {
    return reinterpret_cast<const int64_t*>(Tensor(batch, 0).data());
  }
  // The samples' numbers; fails the test when a sample is not whole.
  std::vector<uint64_t> Ids(const BatchDescriptor& batch) const {
    std::vector<uint64_t> ids;
    for (uint32_t i = 0; i < batch.samples; ++i) {
      const int64_t* sample = Data(batch) + i * NumberDataset::kNumbers;
      for (int64_t k = 1; k < NumberDataset::kNumbers; ++k)
        EXPECT_EQ(sample[k], sample[0]) << "torn sample " << i;
      ids.push_back(static_cast<uint64_t>(sample[0]));
    }
    return ids;
  }
  // As the client library does it: the word, then the doorbell if the daemon asks for it. The test pokes the
  // feed in the doorbell's stead.
  void Release(const BatchDescriptor& batch, Feed& feed) {
    words().slots[batch.slot].generation.store(batch.generation, std::memory_order_seq_cst);
    if (page().starved.load(std::memory_order_seq_cst) != 0) feed.ReadReleases();
  }

 private:
  struct WithPages : Participant {
    explicit WithPages(const Feed& feed) { pages = ControlPages::Create(feed.arena().slot_count()).value(); }
  };

  Feed& feed_;
  WithPages participant_{feed_};
  Mapping publish_;
  Mapping release_;
  Mapping arena_;
  uint64_t taken_ = 0;
};

// One that is a member from the start. `start`: its first batch, see Participant.
class AttachedClient final : public PageClient {
 public:
  explicit AttachedClient(Feed& feed, std::optional<Sampler::Start> start = std::nullopt) : PageClient(feed) {
    const Status attached = feed.Attach(From(start));
    PF_CHECK(attached.ok(), attached.message());
  }
};

}  // namespace pinfeed
