// SPDX-License-Identifier: Apache-2.0
// A reader whose decoder is the test, which may break the protocol.
#include "client/src/decode/decoded_link.h"

#include <sys/socket.h>

#include <array>
#include <cstring>

#include "client/src/decode/decoded_frame.h"
#include "common/os/memfd.h"
#include "tests/integration/decoded_batches_fixture.h"

namespace pinfeed {
namespace {

class DecodedLinkTest : public DecodedBatchesTest {
 protected:
  void SetUp() override {
    DecodedBatchesTest::SetUp();
    std::array<int, 2> pair{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
    socket_.reset(pair[0]);
    ConnectLifeline();
    ASSERT_OK_AND_ASSIGN(reader_, Start(UniqueFd(pair[1])));
    already_ = engine_->decoded();
  }
  void TearDown() override {
    socket_.reset();
    EXPECT_OK(reader_->Stop(In(std::chrono::seconds(30))));
    reader_.reset();
    DecodedBatchesTest::TearDown();
  }

  // Waits for a frame in a blocking receive; returns its bytes and descriptors.
  std::pair<ssize_t, std::vector<UniqueFd>> Receive(DecodedRequest* request) const {
    char byte = 0;
    (void)::recv(socket_.get(), &byte, 1, MSG_PEEK);  // until there is one
    SocketMessage message =
        ReceiveSocketMessage(socket_.get(), std::as_writable_bytes(std::span(request, 1)));
    return {static_cast<ssize_t>(message.bytes), std::move(message.fds)};
  }
  void Send(const std::vector<std::byte>& frame, int fd = -1) const {
    EXPECT_OK(SendDecodedFrame(socket_.get(), frame, fd));
  }
  // Publishes a batch, and returns the reader's request for it.
  DecodedRequest FirstRequest() {
    Publish();
    DecodedRequest request{};
    const auto [bytes, fds] = Receive(&request);
    EXPECT_EQ(bytes, static_cast<ssize_t>(sizeof request));
    EXPECT_EQ(fds.size(), 1U);
    return request;
  }
  // The reader has decoded batch 0 itself, and ended the link.
  void ExpectItDecodes(const std::string& why) {
    reader_->AwaitDecoded(0, std::chrono::seconds(30));
    ASSERT_TRUE(reader_->IsDecoded(0)) << why;
    EXPECT_OK(reader_->OutcomeOf(0));
    EXPECT_GT(engine_->decoded(), already_) << why;
    EXPECT_THAT(Log(), HasSubstr("decodes images itself"));
    EXPECT_THAT(Log(), HasSubstr(why));
    DecodedRequest request{};
    EXPECT_EQ(Receive(&request).first, 0) << why;
  }

  UniqueFd socket_;
  std::unique_ptr<DecodedBatches> reader_;
  size_t already_ = 0;
};

TEST_F(DecodedLinkTest, BatchIsWhatTheDecoderWrites) {
  Publish();
  DecodedRequest request{};
  const auto [bytes, fds] = Receive(&request);
  ASSERT_EQ(bytes, static_cast<ssize_t>(sizeof request));
  ASSERT_EQ(fds.size(), 1U);
  EXPECT_OK(CheckSealedSize(fds[0].get(), request.bytes));
  ASSERT_OK_AND_ASSIGN(const Mapping memory,
                       Mapping::Map(fds[0].get(), request.bytes, Access::kReadWrite, false));
  std::memset(memory.data(), 0, memory.size());
  EXPECT_FALSE(reader_->IsDecoded(0));
  DecodeRing::Failures failures;
  failures.emplace(2, DataLoss("bad codes"));
  Send(PackReply(request, failures));
  reader_->AwaitDecoded(0, std::chrono::seconds(30));
  EXPECT_THAT(reader_->OutcomeOf(0),
              StatusIs(Code::kDataLoss, HasSubstr("image 2 of batch 0 of epoch 0 cannot "
                                                  "be decoded by the GPU: bad codes")));
  EXPECT_EQ(engine_->decoded(), already_);
}

TEST_F(DecodedLinkTest, MemoryIsSentOnce) {
  for (uint64_t n = 0; n < 3 * DecodedBatches::kRing; ++n) {
    PublishUpTo(n + 1);
    DecodedRequest request{};
    const auto [bytes, fds] = Receive(&request);
    ASSERT_EQ(bytes, static_cast<ssize_t>(sizeof request));
    EXPECT_EQ(fds.size(), n < DecodedBatches::kRing ? 1U : 0U);
    EXPECT_EQ(request.entry, n % DecodedBatches::kRing);
    Send(PackReply(request, {}));
    reader_->AwaitDecoded(n, std::chrono::seconds(30));
    EXPECT_OK(reader_->OutcomeOf(n));
    reader_->Discard(n);
  }
}

TEST_F(DecodedLinkTest, AnswersThatCannotBeEndTheLink) {
  const auto refuses = [this](const std::function<void(DecodedReply&)>& spoil, size_t bytes, bool failed) {
    DecodedRequest request = RequestFor(page_.ring[0], 0, 0);
    DecodeRing::Failures failures;
    if (failed) failures.emplace(1, DataLoss("bad"));
    std::vector<std::byte> frame = PackReply(request, failures);
    DecodedReply reply{};
    std::memcpy(&reply, frame.data(), sizeof reply);
    spoil(reply);
    std::memcpy(frame.data(), &reply, sizeof reply);
    if (bytes > 0) frame.resize(bytes);
    SocketMessage message;
    message.bytes = frame.size();
    frame.resize(MaxReplyBytes(request.samples));
    return !ParseReply(message, frame, request).ok();
  };
  const auto nothing = [](DecodedReply&) {};
  EXPECT_FALSE(refuses(nothing, 0, false));
  EXPECT_FALSE(refuses(nothing, 0, true));
  EXPECT_TRUE(refuses(nothing, sizeof(DecodedReply) - 1, false));
  EXPECT_TRUE(refuses(nothing, sizeof(DecodedReply), true));
  EXPECT_TRUE(refuses(nothing, sizeof(DecodedReply) + 1, false));  // a batch of 8 has as many bits
  EXPECT_TRUE(refuses([](DecodedReply& reply) { reply.magic ^= 1; }, 0, false));
  EXPECT_TRUE(refuses([](DecodedReply& reply) { ++reply.version; }, 0, false));
  EXPECT_TRUE(refuses([](DecodedReply& reply) { ++reply.epoch; }, 0, false));
  EXPECT_TRUE(refuses([](DecodedReply& reply) { ++reply.batch_index; }, 0, false));
  EXPECT_TRUE(refuses([](DecodedReply& reply) { --reply.samples; }, 0, false));
  EXPECT_TRUE(refuses([](DecodedReply& reply) { reply.code = 15; }, 0, false));
  EXPECT_TRUE(refuses([](DecodedReply& reply) { reply.code = 0; }, 0, true));
  EXPECT_TRUE(refuses([](DecodedReply& reply) { reply.code = 99; }, 0, true));
  EXPECT_TRUE(refuses([](DecodedReply& reply) { reply.failed = 2; }, 0, true));
}

TEST_F(DecodedLinkTest, SampleBeyondTheBatchIsRefused) {
  BatchDescriptor batch = page_.ring[0];
  batch.samples = 5;
  const DecodedRequest request = RequestFor(batch, 0, 0);
  DecodeRing::Failures failures;
  failures.emplace(6, DataLoss("bad"));
  const std::vector<std::byte> frame = PackReply(request, failures);
  SocketMessage message;
  message.bytes = frame.size();
  EXPECT_THAT(ParseReply(message, frame, request),
              StatusIs(Code::kInternal, HasSubstr("a sample that the batch has not")));
}

TEST_F(DecodedLinkTest, WrongAnswerHasTheReaderDecode) {
  DecodedRequest request = FirstRequest();
  ++request.batch_index;
  Send(PackReply(request, {}));
  ExpectItDecodes("the answer to another request");
}

TEST_F(DecodedLinkTest, AnotherVersionHasTheReaderDecode) {
  std::vector<std::byte> frame = PackReply(FirstRequest(), {});
  frame[8] = std::byte{2};
  Send(frame);
  ExpectItDecodes("a frame of version 2, and this one has version 1");
}

TEST_F(DecodedLinkTest, DescriptorHasTheReaderDecode) {
  Send(PackReply(FirstRequest(), {}), socket_.get());
  ExpectItDecodes("sent a descriptor");
}

TEST_F(DecodedLinkTest, LinkThatEndsHasTheReaderDecodeInOtherMemory) {
  (void)FirstRequest();
  ::shutdown(socket_.get(), SHUT_RDWR);
  ExpectItDecodes("the other process has ended it");
  for (uint64_t n = 0; n < 2 * DecodedBatches::kRing; ++n) {
    PublishUpTo(n + 1);
    reader_->AwaitDecoded(n, std::chrono::seconds(30));
    EXPECT_OK(reader_->OutcomeOf(n));
    reader_->Discard(n);
  }
}

TEST_F(DecodedLinkTest, EvictedReaderDecodesNothing) {
  (void)FirstRequest();
  page_.state = static_cast<uint32_t>(FeedState::kEvicted);
  ::shutdown(socket_.get(), SHUT_RDWR);
  reader_->AwaitDecoded(0, std::chrono::seconds(30));
  EXPECT_THAT(reader_->OutcomeOf(0), StatusIs(Code::kUnavailable, HasSubstr("gets no more batches")));
  EXPECT_EQ(engine_->decoded(), already_);
}

// A trainer may have filled the GPU by then.
TEST_F(DecodedLinkTest, ReaderHasWhatItNeedsToDecode) {
  (void)FirstRequest();
  engine_->RunOutOfMemory();
  ::shutdown(socket_.get(), SHUT_RDWR);
  ExpectItDecodes("the other process has ended it");
  EXPECT_OK(reader_->Stop(In(std::chrono::seconds(30))));
  EXPECT_THAT(Log(), HasSubstr("fewer threads"));
}

TEST_F(DecodedLinkTest, DaemonThatIsGoneHasTheReaderDecode) {
  (void)FirstRequest();
  daemon_end_.reset();
  ExpectItDecodes("the daemon, which watches over it, is gone");
}

TEST_F(DecodedLinkTest, StopDoesNotWaitForAnAnswer) {
  (void)FirstRequest();
  EXPECT_OK(reader_->Stop(In(std::chrono::seconds(30))));
}

}  // namespace
}  // namespace pinfeed
