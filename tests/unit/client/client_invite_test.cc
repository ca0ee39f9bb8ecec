// SPDX-License-Identifier: Apache-2.0
// How a feed invites producers, and how they end with its process.
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "common/base/unique_handle.h"
#include "pinfeed/pinfeed.hpp"
#include "pinfeed/v1/feeder.pb.h"
#include "tests/support/testing.h"
#include "tests/unit/client/client_fake_daemon.h"

namespace pinfeed {
namespace {

// Processes fill one of the two tensors that the fake daemon offers.
constexpr char kProducedSpec[] =
    R"({"dataset": {"produced": {"name": "x", "samples": 40, "lanes": 4, "fields": [{"name": "image"}]}}, "batch_size": 4})";

// Invites through the feed. Returns the last character of the token, which is the session's number.
pf_result Invite(Feed& feed, char* session) {
  char* bytes = nullptr;
  size_t size = 0;
  const pf_result result = pf_invite_producer(feed.get(), 3, &bytes, &size);
  EXPECT_EQ(bytes == nullptr, result != PF_OK);
  v1::ProducerInvitation invitation;
  EXPECT_TRUE(invitation.ParseFromArray(bytes, static_cast<int>(size)));
  pf_free(bytes);
  if (result != PF_OK) return result;
  EXPECT_EQ(invitation.lane(), 3);
  EXPECT_EQ(invitation.tensors_size(), 1);
  EXPECT_EQ(invitation.tensors(0).name(), "image");
  EXPECT_EQ(invitation.arena_bytes(), invitation.slot_count() * invitation.slot_stride());
  *session = invitation.token().back();
  return result;
}

class InviteProducerTest : public ::testing::Test {
 protected:
  TempDir dir_;
  FakeDaemon daemon_{dir_.path()};
  Feed feed_{kProducedSpec,
             {.address = daemon_.address(), .reconnect_timeout = std::chrono::milliseconds(0)}};
  char session_ = ' ';
};

TEST_F(InviteProducerTest, IsForTheCurrentSession) {
  ASSERT_EQ(Invite(feed_, &session_), PF_OK) << pf_last_error();
  EXPECT_EQ(session_, '0');
  ASSERT_EQ(pf_seek_epoch(feed_.get(), 3), PF_OK) << pf_last_error();
  ASSERT_EQ(Invite(feed_, &session_), PF_OK) << pf_last_error();
  EXPECT_EQ(session_, '1');
}

TEST_F(InviteProducerTest, WorksWhileAnotherThreadWaitsForABatch) {
  FakeSession& session = daemon_.Session(0);
  std::thread trainer([&] { EXPECT_TRUE(feed_.Next().has_value()); });
  while (session.release_page().waiting_since_ns.load() == 0) std::this_thread::yield();
  EXPECT_EQ(Invite(feed_, &session_), PF_OK) << pf_last_error();
  session.Publish();
  trainer.join();
}

TEST_F(InviteProducerTest, NeedsTheDaemonOfTheSession) {
  daemon_.HangUp(0);
  pf_result result = PF_OK;
  while (result == PF_OK) result = Invite(feed_, &session_);  // until the socket is closed
  EXPECT_EQ(result, PF_UNAVAILABLE);
  EXPECT_THAT(pf_last_error(), HasSubstr("the feed has no daemon now"));
  pf_batch* batch = nullptr;
  EXPECT_EQ(pf_next(feed_.get(), 30'000, &batch), PF_UNAVAILABLE) << "it noticed";
  EXPECT_EQ(Invite(feed_, &session_), PF_UNAVAILABLE);
}

TEST_F(InviteProducerTest, DrainingDaemonInvitesNobody) {
  daemon_.Session(0).SetState(FeedState::kDraining);
  EXPECT_EQ(Invite(feed_, &session_), PF_UNAVAILABLE);
}

TEST_F(InviteProducerTest, ArgumentsAreChecked) {
  char* bytes = nullptr;
  size_t size = 0;
  EXPECT_EQ(pf_invite_producer(feed_.get(), 4, &bytes, &size), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr("no lane 4: dataset.produced.lanes allows those below 4"));
  Feed other(kSpec, {.address = daemon_.address()});
  EXPECT_EQ(pf_invite_producer(other.get(), 0, &bytes, &size), PF_FAILED_PRECONDITION);
  EXPECT_THAT(pf_last_error(), HasSubstr("reads the dataset of this feed itself"));
  EXPECT_EQ(pf_invite_producer(nullptr, 0, &bytes, &size), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_invite_producer(feed_.get(), 0, nullptr, &size), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_invite_producer(feed_.get(), 0, &bytes, nullptr), PF_INVALID_ARGUMENT);
}

// ---- The end of another process ----

// Forks a process that lives until the pipe is closed, and binds this one to it. Runs in a process of its
// own.
[[noreturn]] void EndWithAChild() {
  int ends[2];
  if (::pipe(ends) != 0) ::_exit(3);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    char byte = 0;
    ::_exit(static_cast<int>(::read(ends[0], &byte, 1)));
  }
  ::close(ends[0]);
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  if (pidfd < 0 || pf_end_with_process(pidfd) != PF_OK) ::_exit(4);
  ::close(ends[1]);
  for (;;) ::pause();
}

TEST(EndWithProcessDeathTest, EndsThisProcess) {
  EXPECT_EXIT(EndWithAChild(), ::testing::ExitedWithCode(1), "");
}

TEST(EndWithProcessTest, DescriptorsOfOtherThingsAreRefused) {
  EXPECT_EQ(pf_end_with_process(-1), PF_INVALID_ARGUMENT);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  EXPECT_EQ(pf_end_with_process(reader.get()), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr("not one of pidfd_open"));
}

}  // namespace
}  // namespace pinfeed
