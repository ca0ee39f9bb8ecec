// SPDX-License-Identifier: Apache-2.0
// A member that decodes for others, which are the test and may break the protocol.
#include "client/src/decode/decoded_readers.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "client/src/decode/decoded_frame.h"
#include "common/os/memfd.h"
#include "tests/integration/decoded_batches_fixture.h"

namespace pinfeed {
namespace {

class DecodedReadersTest : public DecodedBatchesTest {
 protected:
  void SetUp() override {
    DecodedBatchesTest::SetUp();
    ConnectLifeline();
    ASSERT_OK_AND_ASSIGN(decoder_, Start());
  }
  void TearDown() override {
    EXPECT_OK(decoder_->Stop(In(std::chrono::seconds(30))));
    decoder_.reset();
    DecodedBatchesTest::TearDown();
  }

  // Returns the end of a new reader, which gets the batches of epoch 0 from `first` on.
  UniqueFd AddReader(uint64_t first = 0) {
    std::array<int, 2> pair{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
    const UniqueFd other(pair[1]);
    LifelineFrame frame = MakeLifelineFrame(LifelineKind::kReader);
    frame.reader.batch_index = first;
    EXPECT_OK(SendDecodedFrame(daemon_end_.get(), std::as_bytes(std::span(&frame, 1)), other.get()));
    return UniqueFd(pair[0]);
  }
  DecodedRequest RequestOf(uint64_t n) const {
    BatchDescriptor batch = page_.ring[0];
    batch.batch_index += n;
    return RequestFor(batch, static_cast<uint32_t>(n % DecodedBatches::kRing), DecodedLayout(offer_).bytes());
  }
  static void Ask(const UniqueFd& reader, const DecodedRequest& request,
                  const UniqueFd& memory = UniqueFd()) {
    EXPECT_OK(SendDecodedFrame(reader.get(), std::as_bytes(std::span(&request, 1)), memory.get()));
  }
  UniqueFd Memory(uint64_t more = 0) const {
    return CreateMemfd("of-a-reader", DecodedLayout(offer_).bytes() + more).value();
  }
  // Waits for a frame; returns the bytes of it, 0 at the end of the link.
  static ssize_t Receive(const UniqueFd& reader, std::vector<std::byte>* frame) {
    frame->resize(4096);
    const ssize_t bytes = ::recv(reader.get(), frame->data(), frame->size(), 0);
    return bytes < 0 ? 0 : bytes;  // ECONNRESET: with requests that it did not read
  }
  // Fetches a batch as a reader should.
  void Fetch(const UniqueFd& reader, uint64_t n) {
    const DecodedRequest request = RequestOf(n);
    Ask(reader, request, n < DecodedBatches::kRing ? Memory() : UniqueFd());
    ExpectAnswer(reader, request);
  }
  static void ExpectAnswer(const UniqueFd& reader, const DecodedRequest& request) {
    std::vector<std::byte> frame;
    SocketMessage message;
    message.bytes = static_cast<size_t>(Receive(reader, &frame));
    EXPECT_OK(ParseReply(message, frame, request));
  }
  // The link of the reader has ended, and the decoder goes on.
  void ExpectEnd(const UniqueFd& reader, const std::string& why) {
    std::vector<std::byte> frame;
    EXPECT_EQ(Receive(reader, &frame), 0) << why;
    TakeUpTo(next_ + 2 * DecodedBatches::kRing);
    EXPECT_THAT(Log(), HasSubstr(why));
  }
  // The decoder's own trainer takes batches.
  void TakeUpTo(uint64_t count) {
    PublishUpTo(count);
    for (; next_ < count; ++next_) {
      decoder_->AwaitDecoded(next_, std::chrono::seconds(30));
      ASSERT_TRUE(decoder_->IsDecoded(next_)) << next_;
      ASSERT_OK(decoder_->OutcomeOf(next_));
      decoder_->Discard(next_);
    }
  }

  std::unique_ptr<DecodedBatches> decoder_;
  uint64_t next_ = 0;
};

TEST_F(DecodedReadersTest, ReadersGetTheDecodedBatches) {
  const UniqueFd one = AddReader();
  const UniqueFd other = AddReader();
  for (uint64_t n = 0; n < 3 * DecodedBatches::kRing; ++n) {
    TakeUpTo(n + 1);
    Fetch(one, n);
    Fetch(other, n);
  }
  const size_t batches = 3 * DecodedBatches::kRing + 2;  // and what the fixture's own feed decoded
  EXPECT_LE(engine_->decoded(), batches * offer_.layout.batch_size + 8 * 8);
  EXPECT_EQ(Log(), "");
}

TEST_F(DecodedReadersTest, BatchIsKeptUntilTheReaderHasIt) {
  const UniqueFd reader = AddReader();
  TakeUpTo(DecodedBatches::kRing);
  PublishUpTo(DecodedBatches::kRing + 1);
  decoder_->AwaitDecoded(DecodedBatches::kRing, std::chrono::milliseconds(100));
  EXPECT_FALSE(decoder_->IsDecoded(DecodedBatches::kRing));
  Fetch(reader, 0);
  decoder_->AwaitDecoded(DecodedBatches::kRing, std::chrono::seconds(30));
  EXPECT_TRUE(decoder_->IsDecoded(DecodedBatches::kRing));
  for (uint64_t n = 1; n < DecodedBatches::kRing; ++n) Fetch(reader, n);
}

TEST_F(DecodedReadersTest, ReaderThatAsksForALaterBatchWantsNoEarlierOne) {
  const UniqueFd reader = AddReader();
  TakeUpTo(DecodedBatches::kRing);
  const DecodedRequest request = RequestOf(DecodedBatches::kRing);
  Ask(reader, request, Memory());
  PublishUpTo(DecodedBatches::kRing + 1);
  ExpectAnswer(reader, request);
}

TEST_F(DecodedReadersTest, ReaderWithALaterStartIsNotWaitedFor) {
  const UniqueFd reader = AddReader(3 * DecodedBatches::kRing);
  TakeUpTo(3 * DecodedBatches::kRing + 1);
  const DecodedRequest request = RequestOf(3 * DecodedBatches::kRing);
  Ask(reader, request, Memory());
  ExpectAnswer(reader, request);
}

TEST_F(DecodedReadersTest, LateReaderGetsWhatIsStillThere) {
  TakeUpTo(2);
  const UniqueFd reader = AddReader();
  for (uint64_t n = 0; n < 2; ++n) Fetch(reader, n);
}

TEST_F(DecodedReadersTest, LateReaderIsSeenThoughTheRingIsFull) {
  PublishUpTo(DecodedBatches::kRing + 1);
  decoder_->AwaitDecoded(DecodedBatches::kRing - 1, std::chrono::seconds(30));
  const UniqueFd reader = AddReader();
  for (uint64_t n = 0; n < DecodedBatches::kRing; ++n) Fetch(reader, n);
}

TEST_F(DecodedReadersTest, BatchThatIsGoneEndsTheLink) {
  TakeUpTo(DecodedBatches::kRing + 1);
  const UniqueFd reader = AddReader();
  Ask(reader, RequestOf(0), Memory());
  ExpectEnd(reader, "batch 0 of epoch 0 is no longer here");
}

TEST_F(DecodedReadersTest, RequestsThatCannotBeEndTheLink) {
  const auto refused = [this](const std::function<void(DecodedRequest&)>& spoil, const std::string& why) {
    const UniqueFd reader = AddReader(next_);
    const uint64_t n = next_;
    PublishUpTo(n + 1);
    DecodedRequest request = RequestOf(n);
    spoil(request);
    Ask(reader, request, Memory());
    ExpectEnd(reader, why);
  };
  refused([](DecodedRequest& request) { request.magic ^= 1; }, "of another protocol");
  refused([](DecodedRequest& request) { request.version = 7; }, "a frame of version 7");
  refused([](DecodedRequest& request) { request.entry = DecodedBatches::kRing; },
          "the number 4 of its memory");
  refused([](DecodedRequest& request) { ++request.bytes; }, "which is none of this feed");
  refused([](DecodedRequest& request) { request.samples = 9; }, "which is none of this feed");
  refused([](DecodedRequest& request) { --request.samples; }, "of a batch that has 8");
}

TEST_F(DecodedReadersTest, FramesOfAnotherSizeEndTheLink) {
  const UniqueFd reader = AddReader();
  PublishUpTo(1);
  EXPECT_EQ(::send(reader.get(), "x", 1, 0), 1);
  ExpectEnd(reader, "a request of 1 bytes");
}

TEST_F(DecodedReadersTest, MemoryIsAcceptedOnceAndOnlyOfTheRightSize) {
  UniqueFd reader = AddReader();
  PublishUpTo(1);
  Ask(reader, RequestOf(0));
  ExpectEnd(reader, "sent 0 descriptors");
  reader = AddReader(next_);
  PublishUpTo(next_ + 1);
  Ask(reader, RequestOf(next_), Memory(4096));
  ExpectEnd(reader, "bytes");
  reader = AddReader(next_);
  const uint64_t n = next_;
  TakeUpTo(n + 1);
  DecodedRequest request = RequestOf(n);
  Ask(reader, request, Memory());
  ExpectAnswer(reader, request);
  PublishUpTo(n + 2);
  DecodedRequest again = RequestOf(n + 1);
  again.entry = request.entry;
  Ask(reader, again, Memory());
  ExpectEnd(reader, "sent 1 descriptors");
}

TEST_F(DecodedReadersTest, RequestsOutOfOrderEndTheLink) {
  UniqueFd reader = AddReader();
  TakeUpTo(2);
  const DecodedRequest request = RequestOf(1);
  Ask(reader, request, Memory());
  ExpectAnswer(reader, request);
  Ask(reader, RequestOf(0), Memory());
  ExpectEnd(reader, "out of order");
}

TEST_F(DecodedReadersTest, ReaderThatReadsNothingStopsNobody) {
  // Answers fit into its socket; what it has fetched is no concern of the decoder's.
  const UniqueFd reader = AddReader();
  for (uint64_t n = 0; n < 3; ++n) {
    TakeUpTo(n + 1);
    const DecodedRequest request = RequestOf(n);
    Ask(reader, request, Memory());
    pollfd entry{reader.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 30'000), 1);
  }
}

TEST_F(DecodedReadersTest, BrokenDecoderEndsItsLinks) {
  const UniqueFd reader = AddReader();
  TakeUpTo(1);
  Ask(reader, RequestOf(1), Memory());
  engine_->Break(Internal("the GPU fell off the bus"));
  PublishUpTo(2);
  std::vector<std::byte> frame;
  EXPECT_EQ(Receive(reader, &frame), 0);
}

}  // namespace
}  // namespace pinfeed
