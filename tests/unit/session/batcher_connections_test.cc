// SPDX-License-Identifier: Apache-2.0
// A batcher with its threads: the loop of its connections, the workers, clients and consumers, which threads
// of this process play over real sockets and shared memory.
#include "server/session/batcher_connections.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/socket_message.h"
#include "tests/unit/session/opener_fixture.h"

namespace pinfeed {
namespace {

constexpr uint32_t kClientSlots = 4;
constexpr int64_t kClients = 3, kRequests = 200;
constexpr char kName[] = "numbers";
constexpr int64_t kTooLong = -7;  // a number

// The process's side of a connection.
struct Line {
  UniqueFd fd;
  Mapping memory;
  uint64_t stride = 0;
  std::vector<TensorPlace> tensors;

  void Send(LifelineKind kind, const BatcherMessage& message) const {
    LifelineFrame frame = MakeLifelineFrame(kind);
    frame.batcher = message;
    EXPECT_EQ(::send(fd.get(), &frame, sizeof frame, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof frame));
  }
  LifelineFrame Receive() const {
    LifelineFrame frame{};
    EXPECT_EQ(::recv(fd.get(), &frame, sizeof frame, 0), static_cast<ssize_t>(sizeof frame));
    EXPECT_EQ(frame.kind, static_cast<uint32_t>(LifelineKind::kAnswered));
    return frame;
  }
  // Of one tensor: that of a slot of a client, or of a row of a consumer.
  std::byte* At(size_t tensor, uint32_t slot, uint32_t row = 0) const {
    return memory.data() + slot * stride + tensors[tensor].offset + row * tensors[tensor].sample_bytes;
  }
};

class BatcherConnectionsTest : public OpenerTest {
 protected:
  BatcherConnectionsTest() {
    table_.Start();
    loop_->Start();
    OpenFeedArguments arguments;
    FeedSpec& spec = arguments.spec;
    spec.batch_size = 4;
    spec.slots = 4;
    spec.backend = Backend::kHost;
    spec.sharing = Sharing::kQueue;
    spec.group = kName;
    spec.group_size = 1;
    spec.batcher = BatcherSpec{100, 64, 0, sizeof(int64_t), TensorSpec{"", DType::kInt64, {1}}, true};
    session_ = std::get<std::shared_ptr<Session>>(opener_.Open(peer_, arguments, nullptr).value());
    EXPECT_OK(SessionTable::Attach(*session_));  // it asks for nothing
  }
  ~BatcherConnectionsTest() override {
    loop_->Stop();
    connections_.Clear();
    session_.reset();
    for (const auto& session : sessions_.All()) sessions_.Depart(session, {DepartureReason::kDaemonStops});
    table_.Stop();
  }

  Feed& feed() { return *session_->feed; }
  BatcherQueue& queue() { return *feed().producer().requests(); }

  Line Join(bool consumer) {
    BatcherPlace place = opener_.JoinBatcher(peer_, {kName, consumer, kClientSlots, 0}).value();
    const std::shared_ptr<HostArena> memory = place.memory;
    const Token token = connections_.Invite(peer_, std::move(place)).value();
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    std::promise<Status> admitted;
    loop_->Post([&] {
      UniqueConnection fd(ends[1]);
      LifelineFrame frame = MakeLifelineFrame(LifelineKind::kJoin);
      std::ranges::copy(token, frame.token);
      admitted.set_value(connections_.Admit(peer_, frame, fd));
    });
    EXPECT_OK(admitted.get_future().get());
    Line line{UniqueFd(ends[0]), {}, memory->slot_stride(), memory->layout().tensors};
    LifelineFrame welcome{};
    const SocketMessage message =
        ReceiveSocketMessage(line.fd.get(), std::as_writable_bytes(std::span(&welcome, 1)));
    line.memory = Mapping::Map(message.fds.at(0).get(), memory->mapped_bytes(), Access::kReadWrite,
                               /*populate=*/false)
                      .value();
    return line;
  }

  // Submits numbers one by one, and expects each back.
  void Ask(const Line& line, int64_t first) {
    for (int64_t number = first; number < first + kRequests; ++number) {
      const auto slot = static_cast<uint32_t>(number % kClientSlots);
      std::memcpy(line.At(kRequestTensor, slot), &number, sizeof number);
      line.Send(LifelineKind::kRequest, {0, 0, 0, slot, sizeof number});
      const LifelineFrame frame = line.Receive();
      int64_t answer = -1;
      std::memcpy(&answer, line.At(kAnswerTensor, frame.batcher.slot), sizeof answer);
      EXPECT_EQ(frame.code, 0U) << frame.text;
      EXPECT_EQ(answer, number);
    }
  }

  // Answers each request with itself, but kTooLong with more than there is room for, until `over`. Leaves a
  // batch behind, asked for and not taken, after `most` of them.
  void Serve(const Line& line, PageClient& client, const std::atomic<bool>& over, int most) {
    for (int taken = 0; !over; ++taken) {
      client.Wait(feed());
      while (client.ready() == 0 && !over) std::this_thread::yield();
      if (client.ready() == 0 || taken == most) return;
      const std::optional<BatchDescriptor> batch = client.Next();
      ASSERT_TRUE(batch.has_value());
      line.Send(LifelineKind::kTake, {batch->epoch, batch->batch_index, 0, 0, 0});
      if (line.Receive().batcher.bytes > 0) {
        const auto* numbers = client.Data(*batch);
        for (uint32_t i = 0; i < batch->samples; ++i) {
          const int64_t length = numbers[i] == kTooLong ? INT64_MAX : sizeof(int64_t);
          std::memcpy(line.At(kAnswersTensor, 0, i), numbers + i, sizeof(int64_t));
          std::memcpy(line.At(kLengthsTensor, 0, i), &length, sizeof length);
        }
        line.Send(LifelineKind::kAnswer, {batch->epoch, batch->batch_index, 0, 0, batch->samples});
        EXPECT_EQ(line.Receive().code, 0U);
      }
      client.Release(*batch, feed());
    }
  }

  const Peer peer_{.pid = ::getpid(), .uid = kOwner, .gid = 1};
  Refusals refusals_;
  ConnectionRoom room_;
  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create("sessions").value();
  BatcherConnections connections_{*loop_, refusals_, room_, std::chrono::seconds(60)};
  std::shared_ptr<Session> session_;
};

TEST_F(BatcherConnectionsTest, AConsumerHasOneSlotWhichIsAllocated) {
  const uint64_t used = pool_.used_bytes();
  const uint64_t reserved = HostMemoryLedger::ForThisProcess().reserved_bytes();
  const BatcherPlace place = opener_.JoinBatcher(peer_, {kName, /*consumer=*/true, 0, 0}).value();
  EXPECT_EQ(pool_.used_bytes() - used, place.memory->slot_stride());
  EXPECT_EQ(HostMemoryLedger::ForThisProcess().reserved_bytes(), reserved);
}

TEST_F(BatcherConnectionsTest, AnAnswerThatIsTooLongFailsItsRequestAlone) {
  AttachedClient client(feed());
  std::atomic<bool> over{false};
  const Line consumer = Join(/*consumer=*/true);
  std::thread serves([&] { Serve(consumer, client, over, 1 << 30); });
  const Line line = Join(/*consumer=*/false);
  const std::array<int64_t, 3> numbers = {1, kTooLong, 3};
  for (uint32_t slot = 0; slot < numbers.size(); ++slot) {
    std::memcpy(line.At(kRequestTensor, slot), &numbers[slot], sizeof(int64_t));
    line.Send(LifelineKind::kRequest, {0, 0, 0, slot, sizeof(int64_t)});
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const LifelineFrame frame = line.Receive();
    const bool too_long = numbers[frame.batcher.slot] == kTooLong;
    EXPECT_EQ(frame.code, too_long ? static_cast<uint32_t>(Code::kUnknown) : 0U) << frame.text;
    if (too_long) {
      EXPECT_THAT(std::string(frame.text), HasSubstr("9223372036854775807 bytes, and at most 8"));
    }
  }
  over = true;
  serves.join();
}

TEST_F(BatcherConnectionsTest, EachRequestIsAnsweredWhileConsumersHangAndEnd) {
  // The first hangs with a batch that it asked for, the second ends, the third stays.
  constexpr std::array<int, 3> kMost = {20, 40, 1 << 30};
  std::array<AttachedClient, 3> clients{AttachedClient(feed()), AttachedClient(feed()),
                                        AttachedClient(feed())};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  std::array<Line, 3> lines;
  for (size_t i = 0; i < clients.size(); ++i) {
    lines[i] = Join(/*consumer=*/true);
    threads.emplace_back([&, i] {
      Serve(lines[i], clients[i], over, kMost[i]);
      if (i == 1) lines[i].fd.reset();
    });
  }
  std::vector<std::thread> asking;
  for (int64_t i = 0; i < kClients; ++i)
    asking.emplace_back([this, i] { Ask(Join(/*consumer=*/false), i * 1'000'000); });
  for (std::thread& thread : asking) thread.join();
  over = true;
  for (std::thread& thread : threads) thread.join();
  const BatcherQueue::Counts counts = queue().counts();
  EXPECT_EQ(counts.requests, static_cast<uint64_t>(kClients * kRequests));
  EXPECT_EQ(counts.ends[static_cast<size_t>(RequestEnd::kAnswered)], counts.requests);
  WaitFor([&] { return queue().counts().consumers.size() == 2; });
}

}  // namespace
}  // namespace pinfeed
