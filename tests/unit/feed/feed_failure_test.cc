// SPDX-License-Identifier: Apache-2.0
// How a feed comes to its end when something fails: its source, or what it delivers with.
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

// Numbers from storage that does not answer for some of them.
class FarNumbers final : public NumberDataset {
 public:
  explicit FarNumbers(uint64_t far) : NumberDataset(1000), far_(far) {}
  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override {
    if (id == far_) return Unavailable("read number " + std::to_string(id) + ": no answer");
    return NumberDataset::ReadTensor(id, field, out);
  }

 private:
  const uint64_t far_;
};

// Host memory behind copies of which the third one, and all later ones, fail.
class LostArena final : public ArenaOverHost {
 public:
  using ArenaOverHost::ArenaOverHost;
  void Deliver(const Piece& piece, const SlotRange& landing, Done done) override {
    if (piece.slot >= 2) return done(Internal("copy a batch: the GPU is lost"), {});
    memory().Deliver(piece, landing, std::move(done));
  }
};

class FeedFailureTest : public FeedTest {
 protected:
  using FeedTest::FeedTest;
  static FeedSpec InOrder() {
    FeedSpec spec = Spec(8);
    spec.order = Order::kSequential;
    return spec;
  }
};

// A source may fail with the code that tells of a GPU elsewhere. Sample 18 is of the third batch.
TEST_P(FeedFailureTest, SourceThatIsUnavailableFailsTheFeed) {
  const auto feed = Make(InOrder(), std::make_shared<FarNumbers>(18));
  AttachedClient client(*feed, Sampler::Start{});
  WaitFor([&] { return client.state() != FeedState::kRunning; });
  EXPECT_EQ(client.state(), FeedState::kFailed);
  EXPECT_EQ(client.page().error_code, static_cast<uint32_t>(Code::kUnavailable));
  EXPECT_THAT(std::string(client.page().error_text, client.page().error_bytes), HasSubstr("number 18"));
}

class LoaderFailureTest : public FeedFailureTest {};

// The workers go on: with the batch, and with those behind it.
TEST_P(LoaderFailureTest, SampleWithoutMemoryIsABadSample) {
  FeedSpec spec = InOrder();
  spec.epochs = 1;
  spec.on_bad_sample = OnBadSample::kSkip;
  const auto without_memory = [](uint64_t id) {
    if (id == 3) throw std::bad_alloc();
  };
  const auto feed = Make(spec, std::make_shared<NumberDataset>(16, std::set<uint64_t>{}, without_memory));
  AttachedClient client(*feed, Sampler::Start{});
  EXPECT_EQ(client.Ids(*client.Next()), (std::vector<uint64_t>{0, 1, 2, 4, 5, 6, 7}));
  EXPECT_EQ(client.Ids(*client.Next()), (std::vector<uint64_t>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_THAT(feed->Snapshot().last_bad_samples.back().reason, HasSubstr("number 3: no memory"));
}

// In the midst of an epoch, and with all of the last one's batches planned: that is no end of it.
TEST_P(FeedFailureTest, DeliveryThatFailsLeavesTheBatchesToTheNextDaemon) {
  for (const uint64_t samples : {1000, 32}) {
    FeedSpec spec = InOrder();
    spec.epochs = 1;
    Feed& feed = *Make(spec, std::make_shared<NumberDataset>(samples), 4,
                       [](auto memory) { return std::make_unique<LostArena>(std::move(memory)); });
    AttachedClient client(feed, Sampler::Start{});
    WaitFor([&] { return client.state() != FeedState::kRunning; });
    EXPECT_EQ(client.state(), FeedState::kDraining) << "of " << samples << " samples";
    for (uint64_t b = 0; b < 2; ++b) EXPECT_EQ(client.Ids(*client.Next()), Expected(feed, 0, b));
    EXPECT_FALSE(client.Next().has_value());
  }
}

// With every slot in use the feed asks for releases. The third batch, which fails, is in the last slot.
TEST_P(FeedFailureTest, FailedFeedWaitsForNoReleases) {
  const auto feed = Make(InOrder(), std::make_shared<NumberDataset>(1000, std::set<uint64_t>{18}), 3);
  AttachedClient client(*feed, Sampler::Start{});
  WaitFor([&] { return client.state() == FeedState::kFailed; });
  EXPECT_EQ(client.page().starved.load(), 0U);
}

PF_OVER_ALL_PRODUCERS(FeedFailureTest);
PF_OVER_DATASETS(LoaderFailureTest);

}  // namespace
}  // namespace pinfeed
