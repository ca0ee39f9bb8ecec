// SPDX-License-Identifier: Apache-2.0
// How a feed invites producers, and how they end with its process.
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "common/base/unique_handle.h"
#include "pinfeed/pinfeed.hpp"
#include "pinfeed/v1/feeder.pb.h"
#include "tests/support/testing.h"
#include "tests/unit/client/client_fake_daemon.h"

namespace pinfeed {
namespace {

// Invites through the feed. Returns the id of the session that the fake daemon was asked for.
pf_result Invite(Feed& feed, std::string* session) {
  char* bytes = nullptr;
  size_t size = 0;
  const pf_result result = pf_invite_producer(feed.get(), 3, &bytes, &size);
  EXPECT_EQ(bytes == nullptr, result != PF_OK);
  v1::ProducerInvitation invitation;
  EXPECT_TRUE(invitation.ParseFromArray(bytes, static_cast<int>(size)));
  EXPECT_EQ(invitation.lifeline_path(), result == PF_OK ? "lane 3" : "");
  *session = invitation.token();
  pf_free(bytes);
  return result;
}

class InviteProducerTest : public ::testing::Test {
 protected:
  TempDir dir_;
  FakeDaemon daemon_{dir_.path()};
  Feed feed_{kSpec, {.address = daemon_.address(), .reconnect_timeout = std::chrono::milliseconds(0)}};
  std::string session_;
};

TEST_F(InviteProducerTest, IsForTheCurrentSession) {
  ASSERT_EQ(Invite(feed_, &session_), PF_OK) << pf_last_error();
  EXPECT_EQ(session_, "1");
  ASSERT_EQ(pf_seek_epoch(feed_.get(), 3), PF_OK) << pf_last_error();
  ASSERT_EQ(Invite(feed_, &session_), PF_OK) << pf_last_error();
  EXPECT_EQ(session_, "2");
}

TEST_F(InviteProducerTest, WorksWhileAnotherThreadWaitsForABatch) {
  FakeSession& session = daemon_.Session(0);
  std::thread trainer([&] { EXPECT_TRUE(feed_.Next().has_value()); });
  while (session.release_page().waiting_since_ns.load() == 0) std::this_thread::yield();
  EXPECT_EQ(Invite(feed_, &session_), PF_OK) << pf_last_error();
  EXPECT_EQ(session_, "1");
  session.Publish();
  trainer.join();
}

// Another daemon at the same address may use the number of the lost session for another one.
TEST_F(InviteProducerTest, NeedsTheDaemonOfTheSession) {
  daemon_.HangUp(0);
  pf_result result = PF_NOT_FOUND;
  while (result == PF_NOT_FOUND) result = Invite(feed_, &session_);  // until the socket is closed
  EXPECT_EQ(result, PF_UNAVAILABLE);
  EXPECT_THAT(pf_last_error(), HasSubstr("the feed has no daemon now"));
  pf_batch* batch = nullptr;
  EXPECT_EQ(pf_next(feed_.get(), 30'000, &batch), PF_UNAVAILABLE) << "it noticed";
  EXPECT_EQ(Invite(feed_, &session_), PF_UNAVAILABLE);
}

TEST_F(InviteProducerTest, InvitationOfASessionThatEndsMeanwhileIsVoid) {
  daemon_.OnInvite([&] { daemon_.Session(0).SetState(FeedState::kDraining); });
  EXPECT_EQ(Invite(feed_, &session_), PF_UNAVAILABLE);
}

TEST_F(InviteProducerTest, InvitationOfASessionThatIsReplacedMeanwhileIsVoid) {
  daemon_.OnInvite([&] { EXPECT_EQ(pf_seek_epoch(feed_.get(), 3), PF_OK) << pf_last_error(); });
  EXPECT_EQ(Invite(feed_, &session_), PF_UNAVAILABLE);
  EXPECT_THAT(pf_last_error(), HasSubstr("got another session meanwhile"));
}

TEST_F(InviteProducerTest, DrainingDaemonInvitesNobody) {
  daemon_.Session(0).SetState(FeedState::kDraining);
  EXPECT_EQ(Invite(feed_, &session_), PF_UNAVAILABLE);
}

TEST_F(InviteProducerTest, ArgumentsAreChecked) {
  char* bytes = nullptr;
  size_t size = 0;
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
