// SPDX-License-Identifier: Apache-2.0
// Producers through the C interface, against a fake daemon's lifeline, honest or not.
// Long because: each field of an invitation and of a task has its lie.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/memfd.h"
#include "pinfeed/pinfeed.hpp"
#include "pinfeed/v1/feeder.pb.h"
#include "tests/support/testing.h"
#include "tests/unit/client/client_fake_daemon.h"

namespace pinfeed {
namespace {

constexpr uint32_t kTaskSlots = 3;
constexpr uint64_t kTaskStride = 8192;
constexpr uint64_t kArenaBytes = kTaskSlots * kTaskStride;
constexpr uint64_t kSampleIdOffset = 1024;
const std::string kToken(kTokenBytes, 'k');

struct ProducerDeleter {
  void operator()(pf_producer* producer) const { pf_producer_close(producer); }
};
using OwnedProducer = std::unique_ptr<pf_producer, ProducerDeleter>;

// The daemon's end of one producer's lifeline: a listener, the arena and, once attached, the connection.
class ProducerTest : public ::testing::Test {
 protected:
  // Four samples a batch of uint8 [6], and their indexes.
  v1::ProducerInvitation Invitation() const {
    v1::ProducerInvitation invitation;
    invitation.set_lifeline_path(path_);
    invitation.set_token(kToken);
    invitation.set_arena_bytes(kArenaBytes);
    invitation.set_slot_count(kTaskSlots);
    invitation.set_slot_stride(kTaskStride);
    invitation.set_batch_size(4);
    SetTensor(invitation.add_tensors(), "record", v1::UINT8, {6}, 0, 6);
    SetTensor(invitation.add_tensors(), "sample_id", v1::INT64, {}, kSampleIdOffset, 8);
    return invitation;
  }

  // Accepts one connection and answers its token with `welcome_` and `fds_`.
  void Serve() {
    peer_ = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    PF_CHECK(::recv(peer_.get(), &hello_, sizeof(hello_), 0) == sizeof(hello_), "receive the token");
    SendFrame(peer_.get(), welcome_, fds_);
  }
  static pf_result AttachTo(const v1::ProducerInvitation& invitation, OwnedProducer* producer) {
    const std::string bytes = invitation.SerializeAsString();
    pf_producer* attached = nullptr;
    const pf_result result = pf_producer_attach(bytes.data(), bytes.size(), &attached);
    EXPECT_EQ(attached == nullptr, result != PF_OK);
    producer->reset(attached);
    return result;
  }
  pf_result Attach() {
    std::thread server([this] { Serve(); });
    const pf_result result = AttachTo(Invitation(), &producer_);
    server.join();
    return result;
  }
  void MustAttach() { ASSERT_EQ(Attach(), PF_OK) << pf_last_error(); }

  static LifelineFrame TaskFrame(uint64_t task, uint32_t slot, uint32_t samples) {
    LifelineFrame frame = MakeLifelineFrame(LifelineKind::kTask);
    frame.produce = {task, 5, 6, slot, samples};
    return frame;
  }
  // The daemon's answer: `bytes` is not read.
  static LifelineFrame MemoryFrame(uint64_t task, uint64_t bytes) {
    LifelineFrame frame = MakeLifelineFrame(LifelineKind::kMemory);
    frame.memory = {task, bytes, {}};
    return frame;
  }
  void SendTask(uint64_t task, uint32_t slot, uint32_t samples) {
    SendFrame(peer_.get(), TaskFrame(task, slot, samples));
  }
  pf_result Next(pf_task* task, int64_t timeout_ms = 30'000) {
    pf_task_init(task, sizeof(*task));
    return pf_producer_next(producer_.get(), timeout_ms, task);
  }
  // Attaches, and takes a task: number 1, of slot 0.
  pf_task FirstTask(uint32_t samples = 4) {
    MustAttach();
    SendTask(1, 0, samples);
    pf_task task;
    EXPECT_EQ(Next(&task), PF_OK) << pf_last_error();
    return task;
  }
  // The next frame from the producer.
  LifelineFrame Received() {
    LifelineFrame frame{};
    PF_CHECK(::recv(peer_.get(), &frame, sizeof(frame), 0) == sizeof(frame), "receive from the producer");
    return frame;
  }

  TempDir dir_;
  const std::string path_ = (dir_ / "lifeline.sock").string();
  UniqueFd listener_ = ListenForLifelines(path_);
  const UniqueFd arena_fd_ = CreateMemfd("fake-arena", kArenaBytes).value();
  const Mapping arena_ = Mapping::Map(arena_fd_.get(), kArenaBytes, Access::kReadWrite, true).value();
  std::vector<int> fds_ = {arena_fd_.get()};
  LifelineFrame welcome_ = MakeLifelineFrame(LifelineKind::kWelcome);
  LifelineFrame hello_{};
  UniqueFd peer_;
  OwnedProducer producer_;
};

TEST_F(ProducerTest, TaskIsFilledInItsSlotAndReported) {
  MustAttach();
  EXPECT_EQ(hello_.kind, static_cast<uint32_t>(LifelineKind::kProduce));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(hello_.token), kTokenBytes), kToken);
  std::byte* const slot = arena_.data() + 2 * kTaskStride;
  const int64_t ids[] = {7, 8, 9};
  std::memcpy(slot + kSampleIdOffset, ids, sizeof(ids));
  SendTask(11, 2, 3);

  pf_task task;
  ASSERT_EQ(Next(&task), PF_OK) << pf_last_error();
  EXPECT_EQ(task.task, 11U);
  EXPECT_EQ(task.epoch, 5U);
  EXPECT_EQ(task.batch_index, 6U);
  EXPECT_EQ(task.samples, 3U);
  EXPECT_EQ(task.tensor_count, 1U);
  EXPECT_EQ(std::memcmp(task.sample_ids, ids, sizeof(ids)), 0);
  pf_tensor tensor;
  pf_tensor_init(&tensor, sizeof(tensor));
  ASSERT_EQ(pf_producer_tensor(producer_.get(), &task, 0, &tensor), PF_OK);
  EXPECT_STREQ(tensor.name, "record");
  EXPECT_EQ(tensor.dtype, PF_UINT8);
  EXPECT_EQ(tensor.dims, 2U);
  EXPECT_EQ(tensor.shape[0], 3);
  EXPECT_EQ(tensor.shape[1], 6);
  EXPECT_EQ(tensor.bytes, 18U);
  EXPECT_EQ(tensor.device, -1);
  EXPECT_EQ(tensor.writable, 1U);
  std::memset(tensor.data, 42, tensor.bytes);
  ASSERT_EQ(pf_producer_done(producer_.get(), &task, nullptr), PF_OK);

  const LifelineFrame done = Received();
  EXPECT_EQ(done.magic, kLifelineMagic);
  EXPECT_EQ(done.kind, static_cast<uint32_t>(LifelineKind::kTaskDone));
  EXPECT_EQ(done.code, 0U);
  EXPECT_EQ(done.produce.task, 11U);
  EXPECT_EQ(slot[0], std::byte{42});
  EXPECT_EQ(slot[17], std::byte{42});
  EXPECT_EQ(slot[18], std::byte{0});
}

TEST_F(ProducerTest, TensorBeyondTheTasksIsRefused) {
  pf_task task = FirstTask(1);
  pf_tensor tensor;
  pf_tensor_init(&tensor, sizeof(tensor));
  EXPECT_EQ(pf_producer_tensor(producer_.get(), &task, 1, &tensor), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr("tensor 1 of a task that has 1"));
}

TEST_F(ProducerTest, TasksMayBeDoneInAnyOrderAndSlotsComeAgain) {
  MustAttach();
  SendTask(1, 0, 4);
  SendTask(2, 1, 4);
  pf_task first;
  pf_task second;
  ASSERT_EQ(Next(&first), PF_OK);
  ASSERT_EQ(Next(&second), PF_OK);
  ASSERT_EQ(pf_producer_done(producer_.get(), &second, nullptr), PF_OK);
  ASSERT_EQ(pf_producer_done(producer_.get(), &first, nullptr), PF_OK);
  EXPECT_EQ(Received().produce.task, 2U);
  EXPECT_EQ(Received().produce.task, 1U);
  SendTask(3, 1, 4);
  ASSERT_EQ(Next(&second), PF_OK) << pf_last_error();
  EXPECT_EQ(second.task, 3U);
}

TEST_F(ProducerTest, OfTwoThreadsThatReportATaskOneDoes) {
  MustAttach();
  for (uint64_t number = 1; number <= 200; ++number) {
    SendTask(number, 0, 4);
    pf_task task;
    ASSERT_EQ(Next(&task), PF_OK) << pf_last_error();
    std::atomic<int> ready{0};
    std::array<pf_result, 2> results{};
    const auto report = [&](size_t n) {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      results.at(n) = pf_producer_done(producer_.get(), &task, nullptr);
    };
    std::thread other(report, 0);
    report(1);
    other.join();
    ASSERT_THAT(results, UnorderedElementsAre(PF_OK, PF_FAILED_PRECONDITION));
    ASSERT_EQ(Received().produce.task, number);
  }
}

TEST_F(ProducerTest, TaskThatWasDoneIsNoLongerKnown) {
  pf_task task = FirstTask();
  ASSERT_EQ(pf_producer_done(producer_.get(), &task, nullptr), PF_OK);
  EXPECT_EQ(pf_producer_done(producer_.get(), &task, nullptr), PF_FAILED_PRECONDITION);
  pf_tensor tensor;
  pf_tensor_init(&tensor, sizeof(tensor));
  EXPECT_EQ(pf_producer_tensor(producer_.get(), &task, 0, &tensor), PF_FAILED_PRECONDITION);
  pf_task_init(&task, sizeof(task));
  EXPECT_EQ(pf_producer_done(producer_.get(), &task, nullptr), PF_FAILED_PRECONDITION) << "task 0 is none";
}

TEST_F(ProducerTest, FailureIsReportedWithItsText) {
  pf_task task = FirstTask();
  ASSERT_EQ(pf_producer_done(producer_.get(), &task, "KeyError: 3"), PF_OK);
  const LifelineFrame done = Received();
  EXPECT_EQ(done.code, static_cast<uint32_t>(Code::kDataLoss));
  EXPECT_EQ(done.produce.task, 1U);
  EXPECT_STREQ(done.text, "KeyError: 3");
}

TEST_F(ProducerTest, TheEndOfTheDataHasACodeOfItsOwn) {
  pf_task task = FirstTask();
  ASSERT_EQ(pf_producer_end_of_data(producer_.get(), &task), PF_OK);
  const LifelineFrame done = Received();
  EXPECT_EQ(done.code, static_cast<uint32_t>(Code::kOutOfRange));
  EXPECT_EQ(done.produce.task, 1U);
  EXPECT_EQ(pf_producer_end_of_data(producer_.get(), &task), PF_FAILED_PRECONDITION);
}

TEST_F(ProducerTest, LongTextOfAFailureEndsAtACharacter) {
  pf_task task = FirstTask();
  const std::string text = std::string(207, 'x') + "\xc3\xa9";  // 209 bytes
  ASSERT_EQ(pf_producer_done(producer_.get(), &task, text.c_str()), PF_OK);
  const LifelineFrame done = Received();
  EXPECT_EQ(std::string(done.text, ::strnlen(done.text, sizeof(done.text))), std::string(207, 'x'));
}

TEST_F(ProducerTest, TextThatIsNotUtf8IsEscaped) {
  pf_task task = FirstTask();
  ASSERT_EQ(pf_producer_done(producer_.get(), &task, "no \xff"), PF_OK);
  EXPECT_STREQ(Received().text, "no \\xff");
}

TEST_F(ProducerTest, NoTaskUntilTheDeadline) {
  MustAttach();
  pf_task task;
  EXPECT_EQ(Next(&task, 0), PF_DEADLINE_EXCEEDED);
  EXPECT_EQ(Next(&task, 20), PF_DEADLINE_EXCEEDED);
  EXPECT_EQ(Next(&task, -2), PF_INVALID_ARGUMENT);
  SendTask(1, 0, 4);
  EXPECT_EQ(Next(&task), PF_OK) << "a deadline is no failure";
}

TEST_F(ProducerTest, UnpreparedStructTakesNoTask) {
  MustAttach();
  SendTask(1, 0, 4);
  pf_task task{};
  EXPECT_EQ(pf_producer_next(producer_.get(), 0, &task), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_producer_next(producer_.get(), 0, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(Next(&task), PF_OK);
  EXPECT_EQ(task.task, 1U);
}

TEST_F(ProducerTest, MemoryForALargeBatchComesBetweenTasks) {
  pf_task task = FirstTask();
  SendTask(2, 1, 3);
  const UniqueFd memory = CreateMemfd("one-off", 5000).value();
  SendFrame(peer_.get(), MemoryFrame(1, 5000), {memory.get()});
  int fd = -1;
  ASSERT_EQ(pf_producer_memory(producer_.get(), &task, 5000, &fd), PF_OK) << pf_last_error();
  const UniqueFd got(fd);
  EXPECT_OK(CheckSealedSize(got.get(), 5000));
  const LifelineFrame asked = Received();
  EXPECT_EQ(asked.kind, static_cast<uint32_t>(LifelineKind::kMemory));
  EXPECT_EQ(asked.memory.task, 1U);
  EXPECT_EQ(asked.memory.bytes, 5000U);
  ASSERT_EQ(Next(&task), PF_OK);
  EXPECT_EQ(task.task, 2U);
}

TEST_F(ProducerTest, RefusedMemorySaysWhyAndIsNoEnd) {
  pf_task task = FirstTask();
  LifelineFrame refusal = MemoryFrame(1, 5000);
  refusal.code = PF_RESOURCE_EXHAUSTED;
  std::fill(std::begin(refusal.text), std::end(refusal.text), 'x');
  SendFrame(peer_.get(), refusal);
  int fd = 0;
  EXPECT_EQ(pf_producer_memory(producer_.get(), &task, 5000, &fd), PF_RESOURCE_EXHAUSTED);
  EXPECT_EQ(fd, -1);
  EXPECT_EQ(std::string(pf_last_error()), std::string(sizeof refusal.text, 'x'));
  EXPECT_EQ(pf_producer_memory(producer_.get(), &task, 0, &fd), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_producer_memory(producer_.get(), &task, 1, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_producer_done(producer_.get(), &task, nullptr), PF_OK);
}

TEST_F(ProducerTest, ImpossibleMemoryIsRefused) {
  const UniqueFd memory = CreateMemfd("one-off", 4096).value();
  const std::vector<int> one = {memory.get()};
  const std::vector<int> two = {memory.get(), memory.get()};
  const std::vector<std::pair<LifelineFrame, std::vector<int>>> answers = {{MemoryFrame(1, 5000), one},
                                                                           {MemoryFrame(2, 4096), one},
                                                                           {MemoryFrame(1, 4096), {}},
                                                                           {MemoryFrame(1, 4096), two},
                                                                           {TaskFrame(2, 1, 4), one}};
  for (const auto& [answer, fds] : answers) {
    pf_task task = FirstTask();
    SendFrame(peer_.get(), answer, fds);
    int fd = -1;
    EXPECT_EQ(pf_producer_memory(producer_.get(), &task, answer.memory.bytes == 5000 ? 5000 : 4096, &fd),
              PF_INTERNAL);
    EXPECT_EQ(fd, -1);
    EXPECT_EQ(Next(&task, 0), PF_INTERNAL) << "nothing is sure any more";
  }
}

TEST_F(ProducerTest, HangUpEndsTheWaitForMemory) {
  pf_task task = FirstTask();
  std::thread daemon([this] {
    Received();
    peer_.reset();
  });
  int fd = -1;
  EXPECT_EQ(pf_producer_memory(producer_.get(), &task, 5000, &fd), PF_OUT_OF_RANGE);
  daemon.join();
}

TEST_F(ProducerTest, HangUpEndsTheTasksAfterThoseThatWereSent) {
  MustAttach();
  SendTask(1, 0, 4);
  peer_.reset();
  pf_task task;
  ASSERT_EQ(Next(&task), PF_OK);
  pf_task none;
  EXPECT_EQ(Next(&none, -1), PF_OUT_OF_RANGE);
  EXPECT_THAT(pf_last_error(), HasSubstr("the feed was closed, or the daemon ended"));
  EXPECT_EQ(pf_producer_done(producer_.get(), &task, nullptr), PF_OUT_OF_RANGE);
}

TEST_F(ProducerTest, HangUpWakesAWaitingProducer) {
  MustAttach();
  std::thread daemon([this] { peer_.reset(); });
  pf_task task;
  EXPECT_EQ(Next(&task, -1), PF_OUT_OF_RANGE);
  daemon.join();
}

TEST_F(ProducerTest, ClosingUnmapsTheMemoryAndHangsUp) {
  pf_task task = FirstTask();
  unsigned char resident = 0;
  void* const page = const_cast<int64_t*>(task.sample_ids - kSampleIdOffset / sizeof(int64_t));
  ASSERT_EQ(::mincore(page, 1, &resident), 0);
  producer_.reset();
  EXPECT_EQ(::mincore(page, 1, &resident), -1);
  EXPECT_EQ(errno, ENOMEM);
  LifelineFrame frame{};
  EXPECT_EQ(::recv(peer_.get(), &frame, sizeof(frame), 0), 0) << "no farewell is sent";
}

TEST_F(ProducerTest, ForkedChildHasNeitherTheMemoryNorAVoice) {
  pf_task task = FirstTask();
  const int exit_status = ExitStatusOfFork([&] {
    unsigned char resident = 0;
    void* const page = const_cast<int64_t*>(task.sample_ids - kSampleIdOffset / sizeof(int64_t));
    const bool unmapped = ::mincore(page, 1, &resident) == -1 && errno == ENOMEM;
    pf_task another;
    const bool refused = Next(&another, 0) == PF_FAILED_PRECONDITION &&
                         pf_producer_done(producer_.get(), &task, nullptr) == PF_FAILED_PRECONDITION;
    // Other memory of the child at the same place, which closing must not touch.
    void* const own = ::mmap(page, kArenaBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    producer_.reset();
    const bool kept = own == page && ::mincore(page, 1, &resident) == 0;
    return unmapped && refused && kept ? 0 : 1;
  });
  EXPECT_EQ(exit_status, 0);
  ASSERT_EQ(pf_producer_done(producer_.get(), &task, nullptr), PF_OK);
  EXPECT_EQ(Received().code, 0U) << "the child said nothing before";
}

TEST_F(ProducerTest, RefusedTokenIsReported) {
  welcome_.code = static_cast<uint32_t>(Code::kUnauthenticated);
  std::strcpy(welcome_.text, "the token was used");
  fds_.clear();
  EXPECT_EQ(Attach(), PF_UNAUTHENTICATED);
  EXPECT_THAT(pf_last_error(), HasSubstr("the token was used"));
  LifelineFrame frame{};
  EXPECT_EQ(::recv(peer_.get(), &frame, sizeof(frame), 0), 0) << "a producer sends no farewell";
}

TEST_F(ProducerTest, DaemonThatIsGoneIsUnavailable) {
  listener_.reset();
  EXPECT_EQ(AttachTo(Invitation(), &producer_), PF_UNAVAILABLE) << pf_last_error();
  std::filesystem::remove(path_);
  EXPECT_EQ(AttachTo(Invitation(), &producer_), PF_UNAVAILABLE) << pf_last_error();
}

TEST_F(ProducerTest, DaemonThatHangsUpWithoutAnAnswerIsUnavailable) {
  std::thread server([this] {
    const UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    PF_CHECK(::recv(peer.get(), &hello_, sizeof(hello_), 0) == sizeof(hello_), "receive the token");
  });
  EXPECT_EQ(AttachTo(Invitation(), &producer_), PF_UNAVAILABLE) << pf_last_error();
  server.join();
}

// ---- Wrong frames ----

TEST_F(ProducerTest, WelcomesThatCannotBe) {
  const auto expect = [&](const char* message) {
    EXPECT_EQ(Attach(), PF_INTERNAL);
    EXPECT_THAT(pf_last_error(), HasSubstr(message));
  };
  const LifelineFrame right = welcome_;
  fds_ = {};
  expect("0 descriptors were received, expected 1");
  fds_ = {arena_fd_.get(), arena_fd_.get()};
  expect("2 descriptors were received, expected 1");
  Result<UniqueFd> small = CreateMemfd("small", kTaskStride);
  ASSERT_OK(small.status());
  fds_ = {small->get()};
  expect("the daemon's memory is unusable");
  const UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), kArenaBytes), 0);
  fds_ = {unsealed.get()};
  expect("not sealed");
  fds_ = {arena_fd_.get()};
  welcome_.kind = static_cast<uint32_t>(LifelineKind::kTask);
  expect("not a welcome");
  welcome_ = right;
  welcome_.magic = 1;
  expect("not a welcome");
  welcome_ = right;
  MustAttach();
}

struct WrongFrame {
  const char* name;
  std::function<void(LifelineFrame&)> edit;
  const char* message;
};
void PrintTo(const WrongFrame& frame, std::ostream* out) {
  *out << frame.name;
}

class ProducerFrameTest : public ProducerTest, public ::testing::WithParamInterface<WrongFrame> {};

TEST_P(ProducerFrameTest, IsRefusedForGood) {
  pf_task task = FirstTask();
  LifelineFrame frame = TaskFrame(2, 1, 4);
  GetParam().edit(frame);
  SendFrame(peer_.get(), frame);
  SendTask(3, 2, 4);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Next(&task), PF_INTERNAL);
    EXPECT_THAT(pf_last_error(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Frames, ProducerFrameTest,
    ::testing::Values(
        WrongFrame{"Magic", [](LifelineFrame& f) { f.magic = 1; }, "another protocol"},
        WrongFrame{"Kind", [](LifelineFrame& f) { f.kind = 2; }, "a frame of kind 2"},
        WrongFrame{"NoNumber", [](LifelineFrame& f) { f.produce.task = 0; }, "its number is 0"},
        WrongFrame{"NumberInUse", [](LifelineFrame& f) { f.produce.task = 1; }, "a task not done yet"},
        WrongFrame{"SlotInUse", [](LifelineFrame& f) { f.produce.slot = 0; }, "slot 0 is being filled"},
        WrongFrame{"SlotBehindTheLast", [](LifelineFrame& f) { f.produce.slot = 3; }, "slot 3 of 3"},
        WrongFrame{"NoSamples", [](LifelineFrame& f) { f.produce.samples = 0; }, "has 0 samples"},
        WrongFrame{"TooManySamples", [](LifelineFrame& f) { f.produce.samples = 5; }, "has 5 samples"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(ProducerTest, FramesOfAnotherSizeOrWithDescriptorsAreRefused) {
  const std::string bytes(sizeof(LifelineFrame) + 1, '\0');
  for (const size_t size : {sizeof(LifelineFrame) - 1, sizeof(LifelineFrame) + 1}) {
    MustAttach();
    ASSERT_EQ(::send(peer_.get(), bytes.data(), size, 0), static_cast<ssize_t>(size));
    pf_task task;
    EXPECT_EQ(Next(&task), PF_INTERNAL);
  }
  MustAttach();
  SendFrame(peer_.get(), TaskFrame(1, 0, 4), {arena_fd_.get()});
  pf_task task;
  EXPECT_EQ(Next(&task), PF_INTERNAL);
}

// ---- Lying invitations ----

struct WrongInvitation {
  const char* name;
  std::function<void(v1::ProducerInvitation&)> edit;
  const char* message;
};
void PrintTo(const WrongInvitation& lie, std::ostream* out) {
  *out << lie.name;
}

class ProducerInvitationTest : public ProducerTest, public ::testing::WithParamInterface<WrongInvitation> {};

// Nobody accepts the connection, so an invitation that is believed would time out.
TEST_P(ProducerInvitationTest, IsRefused) {
  v1::ProducerInvitation invitation = Invitation();
  GetParam().edit(invitation);
  EXPECT_EQ(AttachTo(invitation, &producer_), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr(GetParam().message));
  EXPECT_THAT(pf_last_error(), Not(HasSubstr(kToken)));
}

using Told = v1::ProducerInvitation;

INSTANTIATE_TEST_SUITE_P(
    Lies, ProducerInvitationTest,
    ::testing::Values(
        WrongInvitation{"NoPath", [](Told& o) { o.clear_lifeline_path(); }, "not absolute"},
        WrongInvitation{"RelativePath", [](Told& o) { o.set_lifeline_path("x.sock"); }, "not absolute"},
        WrongInvitation{"LongPath", [](Told& o) { o.set_lifeline_path("/" + std::string(200, 'x')); },
                        "not a valid path of a Unix socket"},
        WrongInvitation{"NoToken", [](Told& o) { o.clear_token(); }, "token has 0 bytes"},
        WrongInvitation{"LongToken", [](Told& o) { o.set_token(kToken + "k"); }, "token has 33 bytes"},
        WrongInvitation{"NoArena", [](Told& o) { o.set_arena_bytes(0); }, "in an arena of 0"},
        WrongInvitation{"SmallArena", [](Told& o) { o.set_arena_bytes(kArenaBytes - 1); }, "in an arena of"},
        WrongInvitation{"FewSlots", [](Told& o) { o.set_slot_count(kMinSlots - 1); }, "2 slots"},
        WrongInvitation{"ManySlots",
                        [](Told& o) {
                          o.set_slot_count(kMaxSlots + 1);
                          o.set_arena_bytes(kTaskStride * (kMaxSlots + 1));
                        },
                        "65 slots"},
        WrongInvitation{"NoStride", [](Told& o) { o.set_slot_stride(0); }, "slots of 0 bytes"},
        WrongInvitation{"UnalignedStride", [](Told& o) { o.set_slot_stride(kTaskStride - 1); },
                        "slots of 8191 bytes"},
        WrongInvitation{"HugeStride", [](Told& o) { o.set_slot_stride(~uint64_t{511}); }, "in an arena of"},
        WrongInvitation{"NoBatchSize", [](Told& o) { o.set_batch_size(0); }, "batch_size is 0"},
        WrongInvitation{"HugeBatch", [](Told& o) { o.set_batch_size(0xffffffff); }, "ends after its slot"},
        WrongInvitation{"NoTensors", [](Told& o) { o.clear_tensors(); }, "no tensors"},
        WrongInvitation{"NoSampleIds", [](Told& o) { o.mutable_tensors()->RemoveLast(); },
                        "no tensor 'sample_id'"},
        WrongInvitation{"OnlySampleIds", [](Told& o) { o.mutable_tensors()->DeleteSubrange(0, 1); },
                        "no tensor to fill"},
        WrongInvitation{"SampleIdsOfFloats", [](Told& o) { o.mutable_tensors(1)->set_dtype(v1::FLOAT64); },
                        "not one int64 per sample"},
        WrongInvitation{"SampleIdsInRows", [](Told& o) { o.mutable_tensors(1)->add_shape(1); },
                        "not one int64 per sample"},
        WrongInvitation{"SameNameTwice", [](Told& o) { o.mutable_tensors(0)->set_name("sample_id"); },
                        "two tensors are named 'sample_id'"},
        WrongInvitation{"NoName", [](Told& o) { o.mutable_tensors(0)->clear_name(); }, "no usable name"},
        WrongInvitation{"UnknownDtype",
                        [](Told& o) { o.mutable_tensors(0)->set_dtype(static_cast<v1::DType>(99)); },
                        "dtype"},
        WrongInvitation{"NegativeDimension", [](Told& o) { o.mutable_tensors(0)->set_shape(0, -1); },
                        "unusable"},
        WrongInvitation{"ManyDimensions",
                        [](Told& o) {
                          for (int i = 0; i < 16; ++i) o.mutable_tensors(0)->add_shape(1);
                        },
                        "17 dimensions"},
        WrongInvitation{"SampleBytes", [](Told& o) { o.mutable_tensors(0)->set_sample_bytes(7); },
                        "sample_bytes 7"},
        WrongInvitation{"OffsetBehindTheSlot", [](Told& o) { o.mutable_tensors(0)->set_offset(kTaskStride); },
                        "ends after its slot"},
        WrongInvitation{"OverflowingOffset",
                        [](Told& o) { o.mutable_tensors(0)->set_offset(~uint64_t{511}); },
                        "ends after its slot"},
        WrongInvitation{"UnalignedOffset", [](Told& o) { o.mutable_tensors(0)->set_offset(1); }, "unaligned"},
        WrongInvitation{"Padded", [](Told& o) { o.mutable_tensors(0)->set_lengths(2); }, "packed or padded"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(ProducerTest, InvitationThatIsNoMessageIsRefused) {
  pf_producer* producer = nullptr;
  EXPECT_EQ(pf_producer_attach("\xff\xff", 2, &producer), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr("not a ProducerInvitation"));
  EXPECT_EQ(pf_producer_attach("", 0, &producer), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_producer_attach(nullptr, 1, &producer), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_producer_attach("", 0, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(producer, nullptr);
  pf_producer_close(nullptr);
}

}  // namespace
}  // namespace pinfeed
