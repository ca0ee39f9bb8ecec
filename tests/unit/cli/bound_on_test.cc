// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bound_on.h"

#include <string>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

// As protobuf prints it: 64-bit integers are strings, zeros are absent.
Json Session(int id, const std::string& name, const Json& recent) {
  return {{"id", std::to_string(id)}, {"client_name", name}, {"state", "attached"}, {"recent", recent}};
}

Json Feed(const Json& recent, const std::vector<Json>& sessions) {
  return {{"state", "running"},
          {"bound_on", "consumer"},
          {"bound_share", 0.7},
          {"recent", recent},
          {"sessions", sessions}};
}

TEST(BoundOnTest, TheRecentPastIsToldAndNotTheWholeRun) {
  const Json now = {{"read", 0.1}, {"decode", 0.5}, {"consumer", 0.3}};
  const Json session = Session(1, "a", now);
  EXPECT_EQ(FeedBoundOn(Feed(now, {session})),
            "decode: the trainer waits for batches (60% of the time lately)");
  EXPECT_EQ(SessionBoundOn(session, Feed(now, {session})), "decode 50%");
  const Json later = {{"decode", 0.5}, {"consumer", 0.55}};
  EXPECT_EQ(FeedBoundOn(Feed(later, {Session(1, "a", later)})),
            "the trainer: batches wait for it (55% of the time lately)");
}

TEST(BoundOnTest, AnOlderDaemonHasTheWholeRunOnly) {
  Json feed = Feed(Json(), {});
  feed.erase("recent");
  EXPECT_EQ(FeedBoundOn(feed), "the trainer: batches wait for it (70% of all its time)");
  feed.erase("bound_on");
  EXPECT_EQ(FeedBoundOn(feed), "nothing measured yet");
  EXPECT_EQ(SessionBoundOn({{"id", "1"}, {"state", "attached"}}, feed), "-");
}

TEST(BoundOnTest, NobodyIsNamedWhenNobodyWaits) {
  const Json now = {{"read", 0.01}};
  EXPECT_EQ(FeedBoundOn(Feed(now, {})), "nothing: nobody waits (1% of the time lately)");
  EXPECT_EQ(SessionBoundOn(Session(1, "a", now), Feed(now, {})), "-");
}

TEST(BoundOnTest, StatesThatExplainThemselvesComeFirst) {
  EXPECT_EQ(FeedBoundOn({{"state", "failed"}, {"error", "DATA_LOSS: x"}}), "failed: DATA_LOSS: x");
  EXPECT_EQ(FeedBoundOn({{"state", "waiting"}}), "trainers: some have not attached")
      << "no group, or an older daemon";
}

TEST(BoundOnTest, AGroupThatWaitsTellsHowManyMembersAreThere) {
  Json left = Session(7, "c", {});
  left["state"] = "left";
  const Json feed = {{"state", "waiting"},
                     {"group_size", 4},
                     {"sessions", {Session(5, "a", {}), Session(6, "b", {}), left}}};
  EXPECT_EQ(FeedBoundOn(feed), "its group: 2 of 4 members are there");
}

TEST(BoundOnTest, ABatcherWithoutARequestWaitsForOne) {
  const Json now = {{"decode", 0.02}};
  const Json session = Session(1, "a", now);
  Json feed = Feed(now, {session});
  feed["consumers"] = {{{"pid", 5}}};
  EXPECT_EQ(FeedBoundOn(feed), "requests: the batcher waits for them");
  EXPECT_EQ(SessionBoundOn(session, feed), "requests");
  feed["requests"] = "12";
  feed["requests_ended"] = "11";
  EXPECT_EQ(FeedBoundOn(feed), "nothing: nobody waits (2% of the time lately)");
  EXPECT_EQ(SessionBoundOn(session, feed), "-");
  feed["requests_ended"] = "12";
  EXPECT_EQ(FeedBoundOn(feed), "requests: the batcher waits for them");
  EXPECT_EQ(FeedBoundOn(Feed(now, {session})), "nothing: nobody waits (2% of the time lately)")
      << "it is no batcher";
}

TEST(BoundOnTest, WhatNoLongerRunsIsBoundOnNothing) {
  const Json session = Session(1, "a", {{"consumer", 0.8}});
  Json feed = Feed({{"consumer", 0.8}}, {session});
  for (const std::string state : {"ended", "draining"}) {
    feed["state"] = state;
    EXPECT_EQ(FeedBoundOn(feed), "nothing: it is " + state);
    EXPECT_EQ(SessionBoundOn(session, feed), "-");
  }
  feed["state"] = "failed";
  EXPECT_EQ(SessionBoundOn(session, feed), "-");
}

TEST(BoundOnTest, ABatchersBatchesAreForAModel) {
  Json feed = Feed({{"decode", 0.9}}, {Session(1, "a", {{"consumer", 0.8}})});
  feed["consumers"] = {{{"pid", 5}}};
  EXPECT_EQ(FeedBoundOn(feed), "decode: the model waits for batches (90% of the time lately)");
  EXPECT_EQ(FeedRemedy(feed, false), "smaller images, more processors");
  EXPECT_EQ(SessionBoundOn(feed["sessions"][0], feed), "model 80%");
  feed["recent"] = {{"consumer", 0.8}};
  EXPECT_EQ(FeedBoundOn(feed), "the model: batches wait for it (80% of the time lately)");
}

TEST(BoundOnTest, TheOneThatHoldsItsGroupUpIsNamed) {
  const Json slow = Session(5, "slowjob", {{"consumer", 0.98}});
  const Json fast = Session(6, "fastjob", {{"group", 0.95}, {"consumer", 0.02}});
  const Json feed = Feed({{"consumer", 0.98}}, {fast, slow});
  EXPECT_EQ(FeedBoundOn(feed), "session 5 (slowjob): batches wait for it (98% of the time lately)");
  EXPECT_EQ(SessionBoundOn(slow, feed), "trainer 98%");
  EXPECT_EQ(SessionBoundOn(fast, feed), "session 5 (slowjob) 95%");
}

TEST(BoundOnTest, NobodyIsNamedInAGroupOfEquals) {
  const Json one = Session(5, "a", {{"consumer", 0.9}, {"group", 0.05}});
  const Json two = Session(6, "b", {{"consumer", 0.8}});
  const Json three = Session(7, "c", {{"group", 0.4}});
  const Json feed = Feed({{"consumer", 0.9}}, {one, two, three});
  EXPECT_EQ(FeedBoundOn(feed), "the trainers: batches wait for them (90% of the time lately)");
  EXPECT_EQ(SessionBoundOn(three, feed), "another of its group 40%");
}

TEST(BoundOnTest, WhatTheDiskReadAheadIsSaidOnceThereIsSome) {
  EXPECT_EQ(FeedReadAhead(Json::object()), "");
  // A false alarm.
  EXPECT_EQ(FeedReadAhead({{"id", "3"}, {"read_ahead_starts", "1"}}), "");
  Json feed = {{"id", "3"},
               {"read_ahead_on", true},
               {"read_ahead_starts", "1"},
               {"read_ahead_samples", "1234"},
               {"read_ahead_bytes", "2097152"}};
  EXPECT_EQ(FeedReadAhead(feed),
            "feed 3 asked the disk for 1,234 samples (2 MiB) ahead of its workers; switched on 1 time, "
            "reading ahead now");
  feed.erase("read_ahead_on");
  feed["read_ahead_starts"] = "2";
  EXPECT_EQ(FeedReadAhead(feed),
            "feed 3 asked the disk for 1,234 samples (2 MiB) ahead of its workers; switched on 2 times, "
            "off now: the page cache has what it reads");
}

TEST(BoundOnTest, WhatHelpsIsSaidOfFeedsWhoseTrainersWaitMuch) {
  EXPECT_EQ(FeedRemedy(Feed({{"copy", 0.1}, {"workers", 0.2}}, {}), false),
            "fewer feeds on this host, more processors");
  EXPECT_EQ(FeedRemedy(Feed({{"decode", 0.19}}, {}), false), "");
  EXPECT_EQ(FeedRemedy(Feed({{"consumer", 0.9}}, {}), false), "");
  for (const char* const cause : {"read", "decode", "workers", "copy"})
    EXPECT_NE(FeedRemedy(Feed({{cause, 0.9}}, {}), false), "") << cause;
  Json feed = Feed({{"decode", 0.9}}, {});
  feed["producers"] = 2;
  EXPECT_EQ(FeedRemedy(feed, false), "smaller images, more processors") << "what producers do counts as read";
  feed["recent"] = {{"read", 0.9}};
  EXPECT_EQ(FeedRemedy(feed, false), "more processes that fill batches (num_workers)");
  feed.update(
      {{"slots_ready", 1}, {"slowest_producer_pid", 7}, {"slowest_producer_task", "batch 2 of epoch 0"}});
  feed["slowest_producer_seconds"] = 0.9;
  EXPECT_EQ(SlowestProducer(feed), "");
  EXPECT_EQ(FeedRemedy(feed, false), "more processes that fill batches (num_workers)");
  feed["slowest_producer_seconds"] = 12.5;
  EXPECT_EQ(FeedRemedy(feed, false),
            "batches of equal work, or retry_after= if that hangs: later ones are ready, but " +
                SlowestProducer(feed));
  EXPECT_THAT(SlowestProducer(feed), StartsWith("process 7 has been at batch 2 of epoch 0 for 12"));
  feed["slots_ready"] = 0;
  EXPECT_EQ(FeedRemedy(feed, false), "more processes that fill batches (num_workers)") << "all are slow";
  feed["state"] = "draining";
  EXPECT_EQ(FeedRemedy(feed, false), "");
}

TEST(BoundOnTest, WhatAFeedHasAlreadyIsNotAdvised) {
  const std::string always =
      "smaller images, more processors, one feed for all trainers of the host (broadcast)";
  Json feed = Feed({{"decode", 0.9}}, {});
  feed["decode"] = "cpu";
  feed["memory"] = "host";
  EXPECT_EQ(FeedRemedy(feed, false), "cache_bytes (for images), " + always);
  EXPECT_EQ(FeedRemedy(feed, true), always) << "it never looked into the cache";
  feed["memory"] = "gpu";
  EXPECT_EQ(FeedRemedy(feed, false), "cache_bytes (for images), decode=\"gpu\", " + always);
  feed["cache_hits"] = "94";
  feed["cache_misses"] = "6";
  EXPECT_EQ(FeedRemedy(feed, false),
            "more cache_bytes if the decoded images do not fit, decode=\"gpu\", " + always);
  for (const char* const cause : {"read", "decode"}) {
    Json shared = Feed({{cause, 0.9}}, {});
    EXPECT_THAT(FeedRemedy(shared, false), HasSubstr("broadcast")) << cause;
    shared["sharing"] = "broadcast";
    EXPECT_THAT(FeedRemedy(shared, false), Not(HasSubstr("broadcast"))) << cause;
  }
  feed["cache_hits"] = "960";
  feed["decode"] = "auto:500";
  EXPECT_EQ(FeedRemedy(feed, false), always);
}

TEST(BoundOnTest, AnEvictedSessionIsBoundOnNothing) {
  Json gone = Session(5, "a", {{"consumer", 1.0}});
  gone["state"] = "evicted";
  const Json feed = Feed({{"consumer", 1.0}}, {gone, Session(6, "b", {{"group", 1.0}})});
  EXPECT_EQ(SessionBoundOn(gone, feed), "-");
  EXPECT_EQ(SessionBoundOn(feed["sessions"][1], feed), "another of its group 100%");
}

}  // namespace
}  // namespace pinfeed
