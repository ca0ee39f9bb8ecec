// SPDX-License-Identifier: Apache-2.0
// Feeds of local files that the page cache lacks.
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <set>
#include <thread>

#include "common/base/sync.h"
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

// A disk, and its page cache: a read of a sample that nobody asked for ahead is slow.
class ColdDataset final : public NumberDataset {
 public:
  explicit ColdDataset(uint64_t samples, std::function<void()> before_prefetch = nullptr)
      : NumberDataset(samples), before_prefetch_(std::move(before_prefetch)) {}

  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    bool slow = false;
    {
      const MutexLock lock(mutex_);
      slow = !asked_.contains(id);
    }
    if (slow) std::this_thread::sleep_for(std::chrono::microseconds(300));
    return NumberDataset::ReadTensor(id, field, out);
  }
  Prefetched Prefetch(uint64_t id, uint64_t count, size_t /*field*/) const override {
    if (before_prefetch_) before_prefetch_();
    const MutexLock lock(mutex_);
    for (uint64_t i = id; i < id + count; ++i) {
      twice_ = twice_ || asked_.contains(i);
      asked_.insert(i);
    }
    return {count * 512, false};
  }

  size_t asked() const {
    const MutexLock lock(mutex_);
    return asked_.size();
  }
  bool twice() const {
    const MutexLock lock(mutex_);
    return twice_;
  }

 private:
  const std::function<void()> before_prefetch_;
  mutable Mutex mutex_;
  mutable std::set<uint64_t> asked_ PF_GUARDED_BY(mutex_);
  mutable bool twice_ PF_GUARDED_BY(mutex_) = false;
};

class FeedReadAheadTest : public FeedTest {
 protected:
  FeedReadAheadTest() : FeedTest(Producer::kNative) {}

  // Takes one epoch, and expects every batch as the sampler has it.
  void Run(const std::shared_ptr<const ColdDataset>& dataset, uint32_t batch_size) {
    const auto feed = Make(Spec(batch_size, 1), dataset);
    AttachedClient client(*feed, Sampler::Start{});
    uint64_t batch = 0;
    while (const auto taken = client.Next()) {
      std::vector<uint64_t> ids;
      const auto bytes = client.Tensor(*taken, 0);
      for (size_t at = 0; at < bytes.size(); at += NumberDataset::kNumbers * sizeof(int64_t)) {
        int64_t id = 0;
        std::memcpy(&id, bytes.data() + at, sizeof(id));
        ids.push_back(static_cast<uint64_t>(id));
      }
      EXPECT_EQ(ids, Expected(*feed, 0, batch++));
      client.Release(*taken, *feed);
    }
    EXPECT_EQ(batch, feed->sampler().batches_per_epoch());
    read_ahead_ = feed->Snapshot().read_ahead;
  }

  ReadAheadUse read_ahead_;  // at the end of the epoch
};

TEST_F(FeedReadAheadTest, ReadsWhatComesNextOnce) {
  const auto dataset = std::make_shared<ColdDataset>(4000);
  Run(dataset, 50);
  EndFeeds();
  EXPECT_GT(dataset->asked(), 1000U);
  EXPECT_GE(read_ahead_.starts, 1U);  // again where the readers get too little time to be ahead
  EXPECT_GT(read_ahead_.samples, 1000U);
  EXPECT_EQ(read_ahead_.bytes, 512 * read_ahead_.samples);
  EXPECT_FALSE(dataset->twice());
}

TEST_F(FeedReadAheadTest, AReaderThatHangsHoldsUpNeitherABatchNorTheEnd) {
  std::latch go(1);
  std::atomic<uint32_t> hung{0};
  const auto dataset = std::make_shared<ColdDataset>(1000, [&] {
    hung.fetch_add(1);
    go.wait();
  });
  Run(dataset, 50);
  const std::shared_ptr<const FeedShare> share = feeds_.back()->share();
  EndFeeds();
  share->AwaitUsers();
  EXPECT_GT(hung.load(), 0U);
  EXPECT_EQ(dataset->asked(), 0U);
  go.count_down();
  readers_.Stop();  // they use the latch
}

}  // namespace
}  // namespace pinfeed
