// SPDX-License-Identifier: Apache-2.0
// Sessions of a real daemon: opened, attached, refused, lost, drained. The client speaks the protocol by
// hand.
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "common/os/futex.h"
#include "common/os/memfd.h"
#include "tests/integration/raw_client.h"
#include "tests/support/daemon_fixture.h"
#include "tests/unit/dataset/npy_file.h"

namespace pinfeed {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kSamples = 64;

class DaemonTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> arguments = {}, std::vector<std::string> wrapper = {}) {
    std::vector<int64_t> values(kSamples);
    std::iota(values.begin(), values.end(), 0);
    path_ = data_.Write("x.npy", NpyHeaderBytes("<i8", "(64,)", false) + RawBytes(values)).string();
    // Raw clients may hang up without a word: the daemon is not to wait for those at the end of each test.
    arguments.insert(arguments.begin(),
                     {"--allowed-roots=" + data_.path().string(), "--drain-timeout=100ms"});
    daemon_.emplace(std::move(arguments), std::move(wrapper));
    ASSERT_TRUE(daemon_->AwaitReady()) << daemon_->Log();
    client_.emplace(daemon_->rpc_path());
  }

  v1::OpenFeedRequest Request() const { return RawClient::Request(path_); }
  v1::OpenFeedResponse MustOpen(const v1::OpenFeedRequest& request) {
    v1::OpenFeedResponse response;
    const grpc::Status status = client_->Open(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  grpc::Status OpenStatus(const v1::OpenFeedRequest& request) {
    v1::OpenFeedResponse response;
    return client_->Open(request, &response);
  }

  // Asks for the status until `holds` is true of it; what happens in the daemon then has no other event a
  // client could wait for.
  bool AwaitStatus(const std::function<bool(const v1::GetStatusResponse&)>& holds) {
    const auto deadline = steady_clock::now() + seconds(30);
    while (steady_clock::now() < deadline) {
      if (holds(client_->Status())) return true;
    }
    ADD_FAILURE() << client_->Status().DebugString() << daemon_->Log();
    return false;
  }
  bool AwaitAllReclaimed(uint64_t sessions) {
    return AwaitStatus([=](const v1::GetStatusResponse& status) {
      return status.sessions_closed() == sessions && status.pool_used_bytes() == 0 &&
             status.feeds_size() == 0;
    });
  }

  TempDir data_;
  std::string path_;
  std::optional<DaemonProcess> daemon_;
  std::optional<RawClient> client_;
};

// The daemon's pages as a client sees them.
struct Pages {
  explicit Pages(const Welcome& welcome)
      : publish(Map(welcome.fds.at(0).get(), kPublishPageBytes, Access::kReadOnly)),
        release(Map(welcome.fds.at(1).get(), kReleasePageBytes, Access::kReadWrite)) {}
  static Mapping Map(int fd, size_t bytes, Access access) {
    return Mapping::Map(fd, bytes, access, false).value();
  }
  const PublishPage& page() const { return *reinterpret_cast<const PublishPage*>(publish.data()); }

  // Sleeps on the page's futex until `holds`, at most 30 s.
  bool Await(const std::function<bool()>& holds) const {
    const auto deadline = steady_clock::now() + seconds(30);
    while (true) {
      const uint32_t before = page().wake.load();
      if (holds()) return true;
      if (steady_clock::now() >= deadline) return false;
      FutexWait(page().wake, before, seconds(1));
    }
  }

  Mapping publish;
  Mapping release;
};

TEST_F(DaemonTest, OpensAttachesPublishesAndReclaims) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const v1::OpenFeedResponse opened = MustOpen(Request());
  EXPECT_EQ(opened.dataset_samples(), kSamples);
  EXPECT_EQ(opened.batches_per_epoch(), kSamples / 4);
  EXPECT_EQ(opened.lifeline_path(), daemon_->lifeline_path());
  ASSERT_EQ(opened.tensors_size(), 1);

  const RawLifeline lifeline(opened.lifeline_path());
  lifeline.SendHello(opened.token());
  Welcome welcome = lifeline.Receive();
  ASSERT_FALSE(welcome.hung_up);
  ASSERT_EQ(welcome.frame.code, 0U) << welcome.frame.text;
  ASSERT_EQ(welcome.fds.size(), kLifelineFdsHost);

  const Pages pages(welcome);
  EXPECT_EQ(pages.page().magic, kPublishPageMagic);
  ASSERT_TRUE(pages.Await([&] { return pages.page().published.load() == opened.arena().slot_count(); }));
  Mapping arena = Pages::Map(welcome.fds[3].get(), opened.arena().bytes(), Access::kReadWrite);
  for (uint64_t batch = 0; batch < opened.arena().slot_count(); ++batch) {
    const BatchDescriptor& descriptor = pages.page().ring[batch];
    EXPECT_EQ(descriptor.batch_index, batch);
    const std::byte* slot =
        arena.data() + descriptor.slot * opened.arena().slot_stride() + opened.tensors(0).offset();
    EXPECT_EQ(*reinterpret_cast<const int64_t*>(slot), static_cast<int64_t>(4 * batch));
  }
  // A release and a ring of the doorbell bring one batch more.
  auto& words = *reinterpret_cast<ReleasePage*>(pages.release.data());
  words.slots[pages.page().ring[0].slot].generation.store(pages.page().ring[0].generation);
  const uint64_t one = 1;
  ASSERT_EQ(::write(welcome.fds[2].get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  EXPECT_TRUE(pages.Await([&] { return pages.page().published.load() == opened.arena().slot_count() + 1; }));

  const v1::GetStatusResponse status = client_->Status();
  ASSERT_EQ(status.feeds_size(), 1);
  ASSERT_EQ(status.feeds(0).sessions_size(), 1);
  EXPECT_EQ(status.feeds(0).sessions(0).state(), "attached");
  EXPECT_EQ(status.feeds(0).sessions(0).pid(), ::getpid());
  EXPECT_EQ(status.pool_used_bytes(), opened.arena().bytes());

  arena = Mapping();
  welcome.fds.clear();
  lifeline.SendBye();
  EXPECT_TRUE(lifeline.AwaitHangUp());
  AwaitAllReclaimed(1);
}

TEST_F(DaemonTest, RefusesEveryWrongFrame) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const uint32_t fds_before = client_->Status().open_fds();
  LifelineFrame wrong_magic = MakeLifelineFrame(LifelineKind::kHello);
  wrong_magic.magic ^= 1;
  const LifelineFrame bye = MakeLifelineFrame(LifelineKind::kBye);
  const LifelineFrame hello = MakeLifelineFrame(LifelineKind::kHello);
  const std::string large(4096, 'x');
  struct Case {
    const void* bytes;
    size_t size;
    std::vector<int> fds;
    const char* reason;
  };
  const Case cases[] = {{"x", 1, {}, "a frame of 1 bytes"},
                        {large.data(), large.size(), {}, "a frame of more than 256 bytes"},
                        {&wrong_magic, sizeof wrong_magic, {}, "magic"},
                        {&bye, sizeof bye, {}, "kind 3"},
                        {&hello, sizeof hello, {0, 1, 2}, "with descriptors"}};
  uint64_t refused = 0;
  for (const Case& wrong : cases) {
    const RawLifeline lifeline(daemon_->lifeline_path());
    if (!lifeline.Send(wrong.bytes, wrong.size, wrong.fds)) continue;
    ++refused;
    const Welcome answer = lifeline.Receive();
    ASSERT_FALSE(answer.hung_up) << wrong.reason;
    EXPECT_EQ(answer.frame.code, static_cast<uint32_t>(Code::kInvalidArgument)) << wrong.reason;
    EXPECT_THAT(answer.frame.text, HasSubstr(wrong.reason));
    EXPECT_TRUE(answer.fds.empty());
    EXPECT_TRUE(lifeline.AwaitHangUp());
  }
  const v1::GetStatusResponse after = client_->Status();
  EXPECT_EQ(after.refusals(), refused);
  EXPECT_LE(after.open_fds(), fds_before);  // also those that were sent along are closed
}

TEST_F(DaemonTest, RefusesAWrongTokenAndAnotherProcessWithTheRightOne) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const v1::OpenFeedResponse opened = MustOpen(Request());
  {
    std::string token = opened.token();
    token.back() ^= 1;
    const RawLifeline lifeline(daemon_->lifeline_path());
    lifeline.SendHello(token);
    EXPECT_EQ(lifeline.Receive().frame.code, static_cast<uint32_t>(Code::kUnauthenticated));
  }
  const int exit_status = ExitStatusOfFork([&] {  // only system calls: other threads do not come along
    const RawLifeline lifeline(daemon_->lifeline_path());
    lifeline.SendHello(opened.token());
    const Welcome answer = lifeline.Receive();
    return !answer.hung_up && answer.fds.empty() &&
                   answer.frame.code == static_cast<uint32_t>(Code::kUnauthenticated)
               ? 0
               : 1;
  });
  EXPECT_EQ(exit_status, 0) << daemon_->Log();
  // The right process still can.
  const RawLifeline lifeline(daemon_->lifeline_path());
  lifeline.SendHello(opened.token());
  EXPECT_EQ(lifeline.Receive().frame.code, 0U);
  // Once.
  const RawLifeline second(daemon_->lifeline_path());
  second.SendHello(opened.token());
  EXPECT_EQ(second.Receive().frame.code, static_cast<uint32_t>(Code::kUnauthenticated));
  const std::string log = daemon_->Log();
  EXPECT_EQ(log.find(opened.token()), std::string::npos);
}

TEST_F(DaemonTest, TakesBackASessionWhoseLifelineNeverComes) {
  ASSERT_NO_FATAL_FAILURE(Start({"--pending-timeout=50ms"}));
  MustOpen(Request());
  AwaitAllReclaimed(1);
  EXPECT_EQ(client_->Status().refusals(), 1U);
  const RawLifeline silent(daemon_->lifeline_path());  // nor does a connection that says nothing stay
  EXPECT_TRUE(silent.AwaitHangUp());
}

TEST_F(DaemonTest, GivesEveryFaultOfASpec) {
  ASSERT_NO_FATAL_FAILURE(Start());
  v1::OpenFeedRequest request = Request();
  request.mutable_spec()->set_batch_size(0);
  request.mutable_spec()->set_slots(2);
  request.mutable_spec()->set_rank(3);
  const grpc::Status status = OpenStatus(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(),
              AllOf(HasSubstr("batch_size: "), HasSubstr("\nrank: "), HasSubstr("\nslots: ")));

  request = Request();
  request.set_protocol_version(99);
  EXPECT_EQ(OpenStatus(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  request = Request();
  request.set_boot_id("another");
  EXPECT_EQ(OpenStatus(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  request = Request();
  request.mutable_spec()->mutable_dataset()->set_path("/etc");
  EXPECT_EQ(OpenStatus(request).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  request = Request();
  request.mutable_spec()->set_batch_size(1 << 24);
  EXPECT_EQ(OpenStatus(request).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  request = Request();
  request.mutable_cursor()->set_version(2);
  request.mutable_cursor()->set_fingerprint("0123456789abcdef");
  EXPECT_EQ(OpenStatus(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  // The cursor is looked at last, with the feed made; its memory goes back on the daemon's own time.
  EXPECT_TRUE(AwaitStatus([](const v1::GetStatusResponse& now) { return now.pool_used_bytes() == 0; }));
}

TEST_F(DaemonTest, OneGroupHasOneFeedAndOneSpec) {
  ASSERT_NO_FATAL_FAILURE(Start());
  v1::OpenFeedRequest request = Request();
  request.mutable_spec()->set_sharing(v1::FeedSpec::BROADCAST);
  request.mutable_spec()->set_group("g");
  request.mutable_spec()->set_group_size(2);
  const v1::OpenFeedResponse first = MustOpen(request);
  const v1::OpenFeedResponse second = MustOpen(request);
  EXPECT_EQ(first.arena().id(), second.arena().id());
  EXPECT_TRUE(first.arena().read_only());
  request.mutable_spec()->set_seed(7);
  const grpc::Status status = OpenStatus(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("differs in seed"));
  const RawLifeline lifeline(first.lifeline_path());
  lifeline.SendHello(first.token());
  const Welcome welcome = lifeline.Receive();
  ASSERT_EQ(welcome.fds.size(), kLifelineFdsHost);
  void* writable =
      ::mmap(nullptr, first.arena().bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, welcome.fds[3].get(), 0);
  EXPECT_EQ(writable, MAP_FAILED);
}

TEST_F(DaemonTest, SurvivesRunningOutOfDescriptors) {
  ASSERT_NO_FATAL_FAILURE(Start({"--pending-timeout=60s"}, {"prlimit", "--nofile=64:64"}));
  client_->Status();  // has its connection before the flood
  std::vector<RawLifeline> flood;
  for (int i = 0; i < 100; ++i) flood.emplace_back(daemon_->lifeline_path());
  AwaitStatus([](const v1::GetStatusResponse& status) { return status.refusals() > 0; });
  // It pauses instead of spinning: far fewer tries than a busy loop makes.
  EXPECT_LT(client_->Status().refusals(), 1000U);
  flood.clear();
  v1::OpenFeedResponse opened;  // as soon as the dead connections are out of the way
  const auto deadline = steady_clock::now() + seconds(30);
  grpc::Status status;
  do {
    status = client_->Open(Request(), &opened);
  } while (!status.ok() && steady_clock::now() < deadline);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const RawLifeline lifeline(opened.lifeline_path());
  lifeline.SendHello(opened.token());
  EXPECT_EQ(lifeline.Receive().frame.code, 0U) << daemon_->Log();
}

TEST_F(DaemonTest, DrainsOnSigtermUntilItsClientsLeave) {
  ASSERT_NO_FATAL_FAILURE(Start({"--drain-timeout=1h"}));
  const v1::OpenFeedResponse opened = MustOpen(Request());
  const RawLifeline lifeline(opened.lifeline_path());
  lifeline.SendHello(opened.token());
  const Welcome welcome = lifeline.Receive();
  ASSERT_EQ(welcome.fds.size(), kLifelineFdsHost);
  const Pages pages(welcome);
  daemon_->Signal(SIGTERM);
  EXPECT_TRUE(
      pages.Await([&] { return pages.page().state.load() == static_cast<uint32_t>(FeedState::kDraining); }));
  EXPECT_EQ(client_->Status().state(), "draining");
  EXPECT_EQ(OpenStatus(Request()).error_code(), grpc::StatusCode::UNAVAILABLE);
  lifeline.SendBye();
  EXPECT_EQ(daemon_->AwaitExit(), 0) << daemon_->Log();
}

TEST_F(DaemonTest, StopsWithoutClientsThatStayAndAtOnceOnASecondSignal) {
  for (const bool second_signal : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(Start({second_signal ? "--drain-timeout=1h" : "--drain-timeout=100ms"}));
    const v1::OpenFeedResponse opened = MustOpen(Request());
    const RawLifeline lifeline(opened.lifeline_path());
    lifeline.SendHello(opened.token());
    ASSERT_EQ(lifeline.Receive().frame.code, 0U);
    daemon_->Signal(SIGTERM);
    if (second_signal) {
      ASSERT_TRUE(
          AwaitStatus([](const v1::GetStatusResponse& status) { return status.state() == "draining"; }));
      daemon_->Signal(SIGTERM);
    }
    EXPECT_TRUE(lifeline.AwaitHangUp());
    EXPECT_EQ(daemon_->AwaitExit(), 0) << daemon_->Log();
  }
}

// The part of the test below that runs as a process of its own: attaches, hangs up if told to, and waits to
// be killed.
TEST_F(DaemonTest, DISABLED_Child) {
  RawClient client(std::getenv("PINFEED_TEST_RPC"));
  v1::OpenFeedResponse opened;
  ASSERT_TRUE(client.Open(RawClient::Request(std::getenv("PINFEED_TEST_DATA")), &opened).ok());
  RawLifeline lifeline(opened.lifeline_path());
  lifeline.SendHello(opened.token());
  const Welcome welcome = lifeline.Receive();
  ASSERT_EQ(welcome.fds.size(), kLifelineFdsHost);
  if (std::getenv("PINFEED_TEST_HANG_UP") != nullptr) lifeline.Close();
  while (true) ::pause();
}

TEST_F(DaemonTest, ReclaimsWhenTheProcessEndsAndOnlyThen) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const ScopedEnv rpc("PINFEED_TEST_RPC", daemon_->rpc_path().c_str());
  const ScopedEnv data("PINFEED_TEST_DATA", path_.c_str());
  uint64_t ended = 0;
  for (const bool hangs_up : {false, true}) {
    const ScopedEnv hang_up("PINFEED_TEST_HANG_UP", hangs_up ? "1" : nullptr);
    std::string program = "/proc/self/exe";
    std::string filter = "--gtest_filter=DaemonTest.DISABLED_Child";
    std::string disabled = "--gtest_also_run_disabled_tests";
    char* argv[] = {program.data(), filter.data(), disabled.data(), nullptr};
    pid_t child = -1;
    ASSERT_EQ(::posix_spawn(&child, program.c_str(), nullptr, nullptr, argv, environ), 0);
    const std::string state = hangs_up ? "orphaned" : "attached";
    EXPECT_TRUE(AwaitStatus([&](const v1::GetStatusResponse& status) {
      return status.feeds_size() == 1 && status.feeds(0).sessions_size() == 1 &&
             status.feeds(0).sessions(0).state() == state;
    }));
    EXPECT_GT(client_->Status().pool_used_bytes(), 0U);  // an orphan's memory stays charged
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    AwaitAllReclaimed(++ended);
  }
}

}  // namespace
}  // namespace pinfeed
