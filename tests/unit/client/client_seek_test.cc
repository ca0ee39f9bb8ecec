// SPDX-License-Identifier: Apache-2.0
// A seek while others share the feed, against an honest fake daemon: the new session comes before the old one
// goes.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pinfeed/pinfeed.hpp"
#include "tests/support/testing.h"
#include "tests/unit/client/client_fake_daemon.h"

namespace pinfeed {
namespace {

constexpr char kBroadcastSpec[] =
    R"({"dataset": {"path": "/data"}, "batch_size": 4, "sharing": "BROADCAST", "group": "g"})";

class ClientSeekTest : public ::testing::Test {
 protected:
  // What the daemon answers to an OpenFeed that is not the first.
  enum class Answer { kOffer, kEndFirst, kRefuseCall, kRefuseHello, kHangUp, kFull };

  // A daemon that notes what each OpenFeed replaces, and a feed of which one batch of two was taken.
  void Start(std::vector<Answer> answers, bool replaceable = true) {
    const auto answer = [answers](size_t call) {
      return call == 0 || call > answers.size() ? Answer::kOffer : answers[call - 1];
    };
    FakeDaemon::Script script;
    script.refuse = [this, answer](const v1::OpenFeedRequest& request) {
      const size_t call = replaces_.size();
      if (call > 0 && answer(call - 1) == Answer::kEndFirst) {
        leaves_ ? daemon_->WaitForLeave(0) : daemon_->WaitForBye(0);
      }
      replaces_.push_back(request.replaces_session());
      if (answer(call) == Answer::kHangUp) return grpc::Status(grpc::UNAVAILABLE, "the daemon is stopping");
      if (answer(call) == Answer::kFull) return grpc::Status(grpc::RESOURCE_EXHAUSTED, "user_sessions");
      return answer(call) == Answer::kRefuseCall ? grpc::Status(grpc::INVALID_ARGUMENT, "cursor: no border")
                                                 : grpc::Status::OK;
    };
    script.offer = [this, answer, replaceable](v1::OpenFeedResponse& offer) {
      offer.set_replaceable(replaceable);
      if (answer(replaces_.size() - 1) != Answer::kEndFirst) return;
      offer.Clear();
      offer.set_end_first(true);
    };
    script.welcome = [this, answer](LifelineFrame& frame) {
      if (answer(replaces_.size() - 1) == Answer::kRefuseHello) frame.code = PF_FAILED_PRECONDITION;
    };
    script.opened = [](FakeSession& session) {
      for (int i = 0; i < 2; ++i) session.Publish();
    };
    feed_.reset();
    daemon_.reset();
    replaces_.clear();
    daemon_ = std::make_unique<FakeDaemon>(dir_.path(), std::move(script));
    feed_.emplace(kBroadcastSpec, FeedOptions{.address = daemon_->address()});
    EXPECT_EQ(feed_->Next()->index(), 0U);
  }

  TempDir dir_;
  std::vector<uint64_t> replaces_;  // by OpenFeed, one after the other
  bool leaves_ = false;             // a member that has to end first: it holds a batch
  std::unique_ptr<FakeDaemon> daemon_;
  std::optional<Feed> feed_;
};

TEST_F(ClientSeekTest, RefusalLeavesTheSessionAndWhatItHasPublished) {
  const std::pair<Answer, pf_result> refusals[] = {{Answer::kRefuseCall, PF_INVALID_ARGUMENT},
                                                   {Answer::kRefuseHello, PF_FAILED_PRECONDITION},
                                                   {Answer::kHangUp, PF_UNAVAILABLE}};
  for (const auto& [answer, result] : refusals) {
    Start({answer});
    const std::string before = feed_->Cursor();
    EXPECT_EQ(pf_seek_epoch(feed_->get(), 9), result);
    EXPECT_EQ(feed_->Cursor(), before);
    EXPECT_EQ(feed_->Next()->index(), 1U);
    daemon_->Session(0).Publish();
    EXPECT_EQ(feed_->Next()->index(), 2U);
    EXPECT_EQ(feed_->Info().reconnects, 0U);
    EXPECT_THAT(replaces_, ElementsAre(0, 1));
  }
}

TEST_F(ClientSeekTest, OldSessionEndsOnceTheNewOneIsAttached) {
  Start({});
  feed_->SeekEpoch(3);
  daemon_->WaitForBye(0);
  EXPECT_EQ(daemon_->Session(1).request.cursor().epoch(), 3U);
  EXPECT_EQ(feed_->Next()->index(), 0U);
  feed_->SeekEpoch(4);
  EXPECT_THAT(replaces_, ElementsAre(0, 1, 2));
}

TEST_F(ClientSeekTest, BatchHeldOverASeekKeepsItsSession) {
  Start({});
  std::optional<Batch> held(feed_->Next());
  feed_->SeekEpoch(3);
  daemon_->WaitForLeave(0);
  EXPECT_EQ((*held)["image"].data_as<uint8_t>()[0], 1);
  held.reset();
  daemon_->WaitForBye(0);
}

TEST_F(ClientSeekTest, BatchHeldOverTheEndKeepsItsSession) {
  for (const bool replaceable : {true, false}) {
    Start({}, replaceable);
    std::optional<Batch> held(feed_->Next());
    feed_.reset();
    daemon_->WaitForLeave(0);
    EXPECT_EQ((*held)["image"].data_as<uint8_t>()[0], 1);
    held.reset();
    daemon_->WaitForBye(0);
  }
}

TEST_F(ClientSeekTest, OnlyMemberThatHoldsABatchHasLeftBeforeItAsksAgain) {
  Start({Answer::kEndFirst});
  const std::optional<Batch> held(feed_->Next());
  leaves_ = true;
  feed_->SeekEpoch(3);
  EXPECT_THAT(replaces_, ElementsAre(0, 1, 0));
  EXPECT_EQ(feed_->Next()->index(), 0U);
}

TEST_F(ClientSeekTest, FullDaemonIsAskedAgainForAWhile) {
  Start({Answer::kFull, Answer::kFull});
  feed_->SeekEpoch(3);
  EXPECT_THAT(replaces_, ElementsAre(0, 1, 1, 1));
}

TEST_F(ClientSeekTest, OnlyMemberEndsItsSessionWhenTheDaemonWantsIt) {
  Start({Answer::kEndFirst});  // which sees the farewell before the call that follows is answered
  feed_->SeekEpoch(3);
  EXPECT_THAT(replaces_, ElementsAre(0, 1, 0));
  EXPECT_EQ(feed_->Next()->index(), 0U);
}

TEST_F(ClientSeekTest, DaemonLostBetweenTheTwoIsLookedForAtTheNewPlace) {
  Start({Answer::kEndFirst, Answer::kHangUp});
  feed_->SeekEpoch(3);
  EXPECT_EQ(feed_->Next()->index(), 0U);
  EXPECT_THAT(replaces_, ElementsAre(0, 1, 0, 0));
  EXPECT_EQ(daemon_->Session(2).request.cursor().epoch(), 3U);
}

TEST_F(ClientSeekTest, DaemonThatDoesNotKnowItIsNotAskedForIt) {
  Start({}, false);
  feed_->SeekEpoch(3);
  daemon_->WaitForBye(0);
  EXPECT_THAT(replaces_, ElementsAre(0, 0));
}

TEST_F(ClientSeekTest, SessionThatIsOverEndsFirst) {
  Start({});
  feed_->Next();
  daemon_->Session(0).Fail(PF_DATA_LOSS, "bad", 3);
  pf_batch* batch = nullptr;
  EXPECT_EQ(pf_next(feed_->get(), 1000, &batch), PF_DATA_LOSS);
  feed_->SeekEpoch(3);
  EXPECT_THAT(replaces_, ElementsAre(0, 0));
}

}  // namespace
}  // namespace pinfeed
