// SPDX-License-Identifier: Apache-2.0
// Batches that are filled and delivered in pieces, with memory for few pieces at once.
#include "tests/unit/feed/feed_fixture.h"
#include "tests/unit/feed/piece_arena.h"

namespace pinfeed {
namespace {

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
  AttachedClient client(feed, Sampler::Start{});
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
}

TEST_P(FeedPiecesTest, SkippedSamplesLeaveNoGapWhereverTheyLie) {
  FeedSpec spec = Spec(20, 1);
  spec.order = Order::kSequential;
  spec.on_bad_sample = OnBadSample::kSkip;
  // At the ends of pieces, all of one, none of another; the first and the last of a batch; a whole batch.
  std::set<uint64_t> bad = {2, 3, 9, 10, 11, 19, 20, 39};
  for (uint64_t id = 40; id < 60; ++id) bad.insert(id);
  Feed& feed = MakePieces(spec, std::make_shared<NumberDataset>(80, bad));
  AttachedClient client(feed, Sampler::Start{});
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
}

TEST_P(FeedPiecesTest, FirstBadSampleFailsTheBatchWhicheverPieceIsFirst) {
  FeedSpec spec = Spec(20, 1);
  spec.order = Order::kSequential;
  Feed& feed = MakePieces(spec, std::make_shared<NumberDataset>(60, std::set<uint64_t>{27, 28, 38}));
  AttachedClient client(feed, Sampler::Start{});
  const auto first = client.Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(client.Ids(*first), Expected(feed, 0, 0));
  EXPECT_EQ(client.Next(), std::nullopt);
  EXPECT_EQ(client.state(), FeedState::kFailed);
  EXPECT_NE(feed.Snapshot().error.message().find("read number 27"), std::string::npos)
      << feed.Snapshot().error.message();
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
}

TEST_P(FeedPiecesTest, StopEndsBatchesWhosePiecesHaveNoMemoryYet) {
  Feed& feed = MakePieces(Spec(20), std::make_shared<NumberDataset>(200), /*held=*/true);
  AttachedClient client(feed, Sampler::Start{});
  WaitFor([&] { return arena_->waiting() == 2; });
  feed.Depart(client.participant(), Ended());
  std::thread stop([&] { StopAndWait(feed); });
  arena_->LetGo();
  stop.join();
  EXPECT_EQ(feed.Snapshot().slots_filling, 0U);
}

// Sample i has i % (kMaxRows + 1) rows, each {i, number of the row}; and its number. `longest`: what it says
// the largest number of rows is.
class RaggedDataset final : public Dataset {
 public:
  static constexpr int64_t kMaxRows = 5;
  explicit RaggedDataset(uint64_t samples, std::set<uint64_t> bad = {}, int64_t longest = kMaxRows)
      : bad_(std::move(bad)) {
    info_.path = "/ragged";
    info_.samples = samples;
    info_.fields = {{{"rows", DType::kInt32, {longest, 2}}, FieldKind::kRagged}, {{"id", DType::kInt64, {}}}};
  }
  static std::vector<int32_t> Rows(uint64_t id) {
    std::vector<int32_t> rows;
    for (uint64_t row = 0; row < id % (kMaxRows + 1); ++row) {
      rows.push_back(static_cast<int32_t>(id));
      rows.push_back(static_cast<int32_t>(row));
    }
    return rows;
  }
  const DatasetInfo& info() const override { return info_; }
  // Behind the rows: a bad sample has been packed by then.
  Status ReadTensor(uint64_t id, size_t /*field*/, std::span<std::byte> out) const override {
    if (bad_.contains(id)) return DataLoss("read number " + std::to_string(id) + ": it is bad");
    std::memcpy(out.data(), &id, sizeof id);
    return OkStatus();
  }
  Status ReadBytes(uint64_t id, size_t /*field*/, std::vector<std::byte>& out) const override {
    const std::vector<int32_t> rows = Rows(id);
    const auto bytes = std::as_bytes(std::span(rows));
    out.assign(bytes.begin(), bytes.end());
    return OkStatus();
  }
  std::string Describe(uint64_t id) const override { return "number " + std::to_string(id); }

 private:
  DatasetInfo info_;
  std::set<uint64_t> bad_;
};

class FeedRaggedTest : public FeedPiecesTest {
 protected:
  // Of a batch: the samples' numbers, as the field "id" has them; and that each has the rows of that number,
  // but for those in `zeroed`, which have none and are number 0.
  static std::vector<uint64_t> CheckRows(const PageClient& client, const Feed& feed,
                                         const BatchDescriptor& batch, size_t zeroed = 0) {
    const TensorPlace& place = feed.layout().tensors[0];
    const auto* const extents =
        reinterpret_cast<const RowExtent*>(client.Tensor(batch, *place.spec.extents).data());
    const auto* const ids = reinterpret_cast<const uint64_t*>(client.Tensor(batch, 1).data());
    const auto* const rows = reinterpret_cast<const int32_t*>(client.Tensor(batch, 0).data());
    const int64_t capacity = place.spec.shape[0] * feed.layout().batch_size;
    std::vector<bool> taken(static_cast<size_t>(capacity));
    for (uint32_t i = 0; i < batch.samples; ++i) {
      if (extents[i].count == 0 && RaggedDataset::Rows(ids[i]).empty()) continue;
      if (zeroed > 0 && extents[i].count == 0 && ids[i] == 0) {
        --zeroed;
        continue;
      }
      EXPECT_LE(extents[i].first + extents[i].count, capacity);
      const std::vector<int32_t> expected = RaggedDataset::Rows(ids[i]);
      EXPECT_EQ(
          std::vector<int32_t>(rows + 2 * extents[i].first, rows + 2 * (extents[i].first + extents[i].count)),
          expected)
          << "sample " << ids[i];
      for (int64_t row = extents[i].first; row < extents[i].first + extents[i].count; ++row) {
        EXPECT_FALSE(taken[static_cast<size_t>(row)]) << "two samples have row " << row;
        taken[static_cast<size_t>(row)] = true;
      }
    }
    return {ids, ids + batch.samples};
  }
  // Every batch of the feed's epochs, whatever the order of loading.
  void CheckAll(Feed& feed, uint64_t batches) {
    AttachedClient client(feed, Sampler::Start{});
    for (uint64_t index = 0; index < batches; ++index) {
      const auto batch = client.Next();
      ASSERT_TRUE(batch.has_value());
      ASSERT_EQ(CheckRows(client, feed, *batch), Expected(feed, batch->epoch, batch->batch_index));
      client.Release(*batch, feed);
    }
    EXPECT_EQ(client.Next(), std::nullopt);
  }
};

TEST_P(FeedRaggedTest, RowsAreThoseOfTheirSamples) {
  const auto dataset = std::make_shared<RaggedDataset>(131);
  CheckAll(*Make(Spec(20, 4), dataset), 4 * 7);
  CheckAll(MakePieces(Spec(20, 4), dataset), 4 * 7);
}

TEST_P(FeedRaggedTest, BadSamplesTakeTheirRowsAlong) {
  const std::set<uint64_t> bad = {2, 3, 9, 10, 11, 19, 20, 39};
  for (const OnBadSample policy : {OnBadSample::kSkip, OnBadSample::kZero}) {
    FeedSpec spec = Spec(20, 1);
    spec.order = Order::kSequential;
    spec.on_bad_sample = policy;
    const auto dataset = std::make_shared<RaggedDataset>(40, bad);
    for (Feed* const feed : {Make(spec, dataset).get(), &MakePieces(spec, dataset)}) {
      AttachedClient client(*feed, Sampler::Start{});
      for (uint64_t first : {0, 20}) {
        std::vector<uint64_t> expected;
        size_t zeroed = 0;
        for (uint64_t id = first; id < first + 20; ++id) {
          const bool is_bad = bad.contains(id);
          if (is_bad && policy == OnBadSample::kZero) expected.push_back((++zeroed, 0));
          if (!is_bad) expected.push_back(id);
        }
        const auto batch = client.Next();
        ASSERT_TRUE(batch.has_value());
        EXPECT_EQ(CheckRows(client, *feed, *batch, zeroed), expected);
        client.Release(*batch, *feed);
      }
    }
  }
}

TEST_P(FeedRaggedTest, WorkersTakeManySmallSamplesAtOnceThoughOneMayBeLarge) {
  // By the largest sample a worker would take 2 of the 64 at once: 32 chunks a batch, here less than half.
  Feed& feed = *Make(Spec(64), std::make_shared<RaggedDataset>(256, std::set<uint64_t>(), 32768), 3);
  AttachedClient client(feed, Sampler::Start{});
  const auto chunks = [&] { return workers_->progress() + readers_.progress(); };
  bool many = false;
  // Some batches in a row, since others are loaded ahead; others are slow where the threads have to wait for
  // a processor.
  for (int turn = 0; !many && turn < (GetParam() == Producer::kRemote ? 12 : 1250); ++turn) {
    const uint64_t before = chunks();
    for (int i = 0; i < 8; ++i) {
      const auto batch = client.Next();
      ASSERT_TRUE(batch.has_value());
      client.Release(*batch, feed);
    }
    many = chunks() - before < uint64_t{8} * 16;
  }
  EXPECT_EQ(many, GetParam() == Producer::kNative) << "readers of a remote storage share samples out singly";
}

PF_OVER_DATASETS(FeedRaggedTest);
PF_OVER_ALL_PRODUCERS(FeedPiecesTest);

}  // namespace
}  // namespace pinfeed
