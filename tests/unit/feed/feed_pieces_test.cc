// SPDX-License-Identifier: Apache-2.0
// Batches that are filled and delivered in pieces, with memory for few pieces at once.
#include <cstring>
#include <deque>

#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

constexpr uint32_t kPieceSamples = 3;

// Slots that a thread copies pieces to, from memory for two of them. What it copied from is overwritten
// before it is given back.
class PieceArena final : public ArenaOverHost {
 public:
  PieceArena(std::unique_ptr<HostArena> slots, bool held)
      : ArenaOverHost(std::move(slots)), held_(held), copier_([this] { Run(); }) {
    for (std::vector<std::byte>& piece : pieces_) piece.resize(layout().slot_stride);
  }
  ~PieceArena() override {
    Push({});
    copier_.join();
  }
  uint32_t piece_samples() const override { return kPieceSamples; }
  bool Take(Piece* piece) override PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (free_.empty()) return false;
    piece->memory = free_.back();
    free_.pop_back();
    return true;
  }
  void Return(const Piece& piece) override PF_EXCLUDES(mutex_) {
    std::vector<std::byte>& memory = pieces_[piece.memory];
    std::memset(memory.data(), 0xee, memory.size());
    const MutexLock lock(mutex_);
    free_.push_back(piece.memory);
  }
  std::byte* FillAddress(const Piece& piece, size_t tensor) override {
    return pieces_[piece.memory].data() + layout().tensors[tensor].offset;
  }
  void Deliver(const Piece& piece, const SlotRange& landing, Done done) override {
    Push({piece, landing, std::move(done)});
  }

  void LetGo() PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    held_ = false;
    changed_.NotifyAll();
  }
  size_t waiting() const PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return jobs_.size();
  }

 private:
  struct Job {
    Piece piece;
    SlotRange landing;
    Done done;  // none: the end
  };
  void Push(Job job) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.NotifyAll();
  }
  void Run() {
    while (true) {
      Job job;
      {
        const MutexLock lock(mutex_);
        while (jobs_.empty() || (held_ && jobs_.front().done)) changed_.Wait(mutex_);
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      if (!job.done) return;
      for (size_t t = 0; t < layout().tensors.size(); ++t) {
        const uint64_t bytes = layout().tensors[t].sample_bytes;
        std::memcpy(memory().FillAddress({job.piece.slot, job.landing.first, 0, 0}, t),
                    FillAddress(job.piece, t), job.landing.samples * bytes);
      }
      Return(job.piece);
      job.done(OkStatus(), {});
    }
  }

  std::array<std::vector<std::byte>, 2> pieces_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool held_ PF_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ PF_GUARDED_BY(mutex_) = {0, 1};
  std::deque<Job> jobs_ PF_GUARDED_BY(mutex_);
  std::thread copier_;
};

class FeedPiecesTest : public FeedTest {
 protected:
  Feed& MakePieces(const FeedSpec& spec, std::shared_ptr<const Dataset> dataset, bool held = false) {
    return *Make(spec, std::move(dataset), 4, [&](auto slots) {
      auto arena = std::make_unique<PieceArena>(std::move(slots), held);
      arena_ = arena.get();
      return arena;
    });
  }
  PieceArena* arena_ = nullptr;
};

TEST_P(FeedPiecesTest, BatchesAreWholeAndInOrder) {
  FeedSpec spec = Spec(20, 3);
  spec.drop_last = false;
  Feed& feed = MakePieces(spec, std::make_shared<NumberDataset>(131));
  PageClient client(feed);
  ASSERT_OK(feed.Attach(client.From(Sampler::Start{})));
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    for (uint64_t index = 0; index < 7; ++index) {
      const auto batch = client.Next();
      ASSERT_TRUE(batch.has_value());
      ASSERT_EQ(batch->epoch, epoch);
      ASSERT_EQ(batch->batch_index, index);
      ASSERT_EQ(client.Ids(*batch), Expected(feed, epoch, index));
      client.Release(*batch, feed);
    }
  }
  EXPECT_EQ(client.Next(), std::nullopt);
  EXPECT_EQ(client.state(), FeedState::kEnded);
  feed.Depart(client.participant(), Ended());
}

TEST_P(FeedPiecesTest, SkippedSamplesLeaveNoGapWhereverTheyLie) {
  FeedSpec spec = Spec(20, 1);
  spec.order = Order::kSequential;
  spec.on_bad_sample = OnBadSample::kSkip;
  // At the ends of pieces, all of one, none of another; the first and the last of a batch; a whole batch.
  std::set<uint64_t> bad = {2, 3, 9, 10, 11, 19, 20, 39};
  for (uint64_t id = 40; id < 60; ++id) bad.insert(id);
  Feed& feed = MakePieces(spec, std::make_shared<NumberDataset>(80, bad));
  PageClient client(feed);
  ASSERT_OK(feed.Attach(client.From(Sampler::Start{})));
  for (uint64_t index = 0; index < 4; ++index) {
    std::vector<uint64_t> good;
    for (uint64_t id = index * 20; id < index * 20 + 20; ++id)
      if (!bad.contains(id)) good.push_back(id);
    const auto batch = client.Next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ(batch->samples, good.size());
    EXPECT_EQ(batch->skipped, 20 - good.size());
    EXPECT_EQ(client.Ids(*batch), good);
    client.Release(*batch, feed);
  }
  EXPECT_EQ(client.Next(), std::nullopt);
  EXPECT_EQ(feed.Snapshot().bad_samples, bad.size());
  feed.Depart(client.participant(), Ended());
}

TEST_P(FeedPiecesTest, FirstBadSampleFailsTheBatchWhicheverPieceIsFirst) {
  FeedSpec spec = Spec(20, 1);
  spec.order = Order::kSequential;
  Feed& feed = MakePieces(spec, std::make_shared<NumberDataset>(60, std::set<uint64_t>{27, 28, 38}));
  PageClient client(feed);
  ASSERT_OK(feed.Attach(client.From(Sampler::Start{})));
  const auto first = client.Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(client.Ids(*first), Expected(feed, 0, 0));
  EXPECT_EQ(client.Next(), std::nullopt);
  EXPECT_EQ(client.state(), FeedState::kFailed);
  EXPECT_NE(feed.Snapshot().error.message().find("read number 27"), std::string::npos)
      << feed.Snapshot().error.message();
  feed.Depart(client.participant(), Ended());
}

TEST_P(FeedPiecesTest, CopiesThatDoNotEndAreWhatTheFeedWaitsFor) {
  Feed& feed = MakePieces(Spec(20), std::make_shared<NumberDataset>(200), /*held=*/true);
  PageClient client(feed);
  client.words().waiting_since_ns.store(
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  ASSERT_OK(feed.Attach(client.From(Sampler::Start{})));
  WaitFor([&] { return arena_->waiting() == 2; });
  (void)feed.Snapshot();
  const auto copy = static_cast<size_t>(StallCause::kCopy);
  const uint64_t before = feed.Snapshot().stall_ns[copy];
  WaitFor([&] { return feed.Snapshot().stall_ns[copy] >= before + 5'000'000; });
  EXPECT_EQ(feed.Snapshot().slot_states, "wwww");
  arena_->LetGo();
  const auto batch = client.Next();
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(client.Ids(*batch), Expected(feed, 0, 0));
  feed.Depart(client.participant(), Ended());
}

TEST_P(FeedPiecesTest, StopEndsBatchesWhosePiecesHaveNoMemoryYet) {
  Feed& feed = MakePieces(Spec(20), std::make_shared<NumberDataset>(200), /*held=*/true);
  PageClient client(feed);
  ASSERT_OK(feed.Attach(client.From(Sampler::Start{})));
  WaitFor([&] { return arena_->waiting() == 2; });
  feed.Depart(client.participant(), Ended());
  std::thread stop([&] { StopAndWait(feed); });
  arena_->LetGo();
  stop.join();
  EXPECT_EQ(feed.Snapshot().slots_filling, 0U);
}

PF_OVER_ALL_PRODUCERS(FeedPiecesTest);

}  // namespace
}  // namespace pinfeed
