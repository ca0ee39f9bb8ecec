// SPDX-License-Identifier: Apache-2.0
// The decode threads of a session and their ring, with slots and a publish page under the test's hands.
#include "client/src/decoded_batches.h"

#include <cstring>

#include "tests/integration/client_decode_fixture.h"

namespace pinfeed {
namespace {

using ::testing::HasSubstr;

// A publish page and an arena of the test's own, with one batch of a real feed in slot 0.
class DecodedBatchesTest : public ClientDecodeTest {
 protected:
  void SetUp() override {
    ClientDecodeTest::SetUp();
    const auto feed = Open(kGpu, engine_);
    ASSERT_TRUE(feed);
    ASSERT_OK_AND_ASSIGN(Batch* const batch, feed->Next(std::chrono::seconds(30)));
    offer_ = feed->offer();
    const std::byte* const slot = batch->session().slots().address(batch->descriptor().slot);
    arena_.assign(slot, slot + offer_.layout.slot_stride);
    page_.ring[0] = batch->descriptor();
    page_.ring[0].sequence = 0;
    page_.ring[0].slot = 0;
    batch->Release();
  }
  Result<std::unique_ptr<DecodedBatches>> Start() {
    return DecodedBatches::Start(offer_, {page_, offer_.slot_count, offer_.layout.batch_size}, arena_.data(),
                                 engine_);
  }
  void Publish() {
    page_.published = 1;
    page_.wake = 1;
    PublishReader(page_, 1, 1).WakeSleepers();
  }
  // Batches like the first, all at once.
  void PublishUpTo(uint64_t count) {
    for (uint64_t n = page_.published; n < count; ++n) {
      page_.ring[n] = page_.ring[0];
      page_.ring[n].sequence = n;
    }
    page_.published = count;
    page_.wake = static_cast<uint32_t>(count);
    PublishReader(page_, 1, 1).WakeSleepers();
  }
  // Batch 0 is decoded, three more are published, and a thread is held that decodes one of them.
  void DecodeOneAndHoldTheNext(const DecodedBatches& batches) {
    Publish();
    batches.AwaitDecoded(0, std::chrono::seconds(30));
    engine_->HoldDecoders(true);
    PublishUpTo(4);
    EXPECT_TRUE(engine_->AwaitHeld());
  }
  static SteadyTime In(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

  const std::shared_ptr<CpuDecodeEngine> engine_ = std::make_shared<CpuDecodeEngine>();
  FeedOffer offer_;
  PublishPage page_{};
  std::vector<std::byte> arena_;
};

TEST_F(DecodedBatchesTest, StopDoesNotWaitForADecoderThatHangs) {
  engine_->HoldDecoders(true);
  ASSERT_OK_AND_ASSIGN(const auto batches, Start());
  Publish();
  EXPECT_TRUE(engine_->AwaitHeld());
  EXPECT_FALSE(batches->IsDecoded(0));
  EXPECT_THAT(batches->Stop(In(std::chrono::milliseconds(10))),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("still decodes")));
  engine_->HoldDecoders(false);
  EXPECT_OK(batches->Stop(In(std::chrono::seconds(30))));
}

TEST_F(DecodedBatchesTest, ImpossibleSlotsFailEverythingBehindThem) {
  const OfferedImage& image = *offer_.Decoded()->image;
  const TensorPlace& plans = offer_.layout.tensors[*image.plan];
  std::memset(arena_.data() + plans.offset + 3 * plans.sample_bytes, 0xEE, plans.sample_bytes);
  ASSERT_OK_AND_ASSIGN(const auto batches, Start());
  Publish();
  batches->AwaitDecoded(0, std::chrono::seconds(30));
  EXPECT_THAT(batches->OutcomeOf(0), StatusIs(Code::kInternal, HasSubstr("plan of an image")));
  EXPECT_OK(batches->Stop(In(std::chrono::seconds(30))));
}

TEST_F(DecodedBatchesTest, OneThreadDecodesWhileADecodedBatchWaits) {
  ASSERT_OK_AND_ASSIGN(const auto batches, Start());
  DecodeOneAndHoldTheNext(*batches);
  EXPECT_FALSE(engine_->AwaitHeld(2, std::chrono::milliseconds(200)));
  batches->Discard(0);
  EXPECT_TRUE(engine_->AwaitHeld(2));  // now the trainer waits
  engine_->HoldDecoders(false);
  EXPECT_OK(batches->Stop(In(std::chrono::seconds(30))));
}

TEST_F(DecodedBatchesTest, BatchThatIsTakenDoesNotWaitForTheTrainer) {
  ASSERT_OK_AND_ASSIGN(const auto batches, Start());
  DecodeOneAndHoldTheNext(*batches);
  EXPECT_FALSE(batches->IsDecoded(1));  // batch 0 is not written yet
  EXPECT_TRUE(engine_->AwaitHeld(2));
  engine_->HoldDecoders(false);
  EXPECT_OK(batches->Stop(In(std::chrono::seconds(30))));
}

TEST_F(DecodedBatchesTest, DiscardedBatchLeavesItsEntryToTheNext) {
  engine_->HoldDecoders(true);
  ASSERT_OK_AND_ASSIGN(const auto batches, Start());
  Publish();
  EXPECT_TRUE(engine_->AwaitHeld());
  batches->Discard(0);
  engine_->HoldDecoders(false);
  EXPECT_FALSE(batches->IsDecoded(0));
  for (uint64_t n = 1; n <= 2 * DecodedBatches::kRing; ++n) {
    PublishUpTo(n + 1);
    batches->AwaitDecoded(n, std::chrono::seconds(30));
    EXPECT_TRUE(batches->IsDecoded(n));
    EXPECT_OK(batches->OutcomeOf(n));
    batches->Discard(n);
  }
  EXPECT_OK(batches->Stop(In(std::chrono::seconds(30))));
}

}  // namespace
}  // namespace pinfeed
