// SPDX-License-Identifier: Apache-2.0
// The decode threads of a session and their ring.
#include "client/src/decode/decoded_batches.h"

#include <cstring>

#include "tests/integration/decoded_batches_fixture.h"

namespace pinfeed {
namespace {

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
