// SPDX-License-Identifier: Apache-2.0
// The client against an honest fake daemon: order, releases, ends, reconnects, positions. Through the C++
// interface, so that it is tested too.
// Long because: each test is one thing that a feed promises its trainer, and all need the same daemon.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/client/served_feed.h"

namespace pinfeed {
namespace {

using std::chrono::milliseconds;

// Daemons that come, go and refuse as the test has it.
class ClientFeedTest : public ::testing::Test {
 protected:
  FeedOptions Options() const {
    return {.address = (dir_ / "feed.sock").string(), .reconnect_timeout = milliseconds(20'000)};
  }
  std::unique_ptr<FakeDaemon> Daemon(FakeDaemon::Script script = {}) const {
    return std::make_unique<FakeDaemon>(dir_.path(), std::move(script));
  }

  TempDir dir_;
  LogCapture log_;
};

pf_result NextCode(Feed& feed, int64_t timeout_ms = 0) {
  pf_batch* batch = nullptr;
  const pf_result result = pf_next(feed.get(), timeout_ms, &batch);
  EXPECT_EQ(batch == nullptr, result != PF_OK);
  pf_batch_release(batch);
  return result;
}

TEST_F(ServedFeedTest, BatchesComeInOrderWithTheirTensors) {
  for (uint64_t i = 0; i < 200; ++i) {  // past the end of the descriptor ring
    session_.Publish([&](BatchDescriptor& batch) { batch.samples = 1 + i % 4; });
    const Batch batch = *feed_.Next();
    EXPECT_EQ(batch.index(), i);
    EXPECT_EQ(batch.samples(), 1 + i % 4);
    const TensorView image = batch["image"];
    EXPECT_EQ(image.shape(), (std::vector<int64_t>{static_cast<int64_t>(1 + i % 4), 2, 3}));
    EXPECT_EQ(image.strides(), (std::vector<int64_t>{6, 3, 1}));
    EXPECT_EQ(image.bytes(), 6 * (1 + i % 4));
    EXPECT_EQ(image.dtype(), PF_UINT8);
    EXPECT_TRUE(image.writable());
    EXPECT_EQ(image.data_as<uint8_t>()[5], i & 0xff);
    EXPECT_EQ(static_cast<std::byte*>(batch[1].data()) - static_cast<std::byte*>(image.data()), 512);
  }
  EXPECT_EQ(session_.release_page().taken.load(), 200U);
}

TEST_F(ServedFeedTest, ReleaseStoresTheGenerationAndRingsOnlyForAStarvedDaemon) {
  session_.Publish([](BatchDescriptor& batch) { batch.generation = 77; });
  session_.Publish();
  {
    const Batch batch = *feed_.Next();
    EXPECT_EQ(session_.Released(0), 0U);
  }
  EXPECT_EQ(session_.Released(0), 77U);
  EXPECT_EQ(session_.Rings(), 0U);
  session_.page().starved.store(1);
  feed_.Next()->Release();
  EXPECT_EQ(session_.Released(1), 2U);
  EXPECT_EQ(session_.Rings(), 1U);
}

TEST_F(ServedFeedTest, RetainedBatchGoesBackWithItsLastRelease) {
  session_.Publish();
  pf_batch* batch = nullptr;
  ASSERT_EQ(pf_next(feed_.get(), 0, &batch), PF_OK);
  pf_batch_retain(batch);
  std::thread([&] { pf_batch_release(batch); }).join();
  EXPECT_EQ(session_.Released(0), 0U);
  pf_batch_release(batch);
  EXPECT_EQ(session_.Released(0), 1U);
}

TEST_F(ServedFeedTest, AReleaseOnAStreamIsForASoleOwnerAlsoOnTheHost) {
  session_.Publish();
  pf_batch* batch = nullptr;
  ASSERT_EQ(pf_next(feed_.get(), 0, &batch), PF_OK);
  pf_batch_retain(batch);
  EXPECT_EQ(pf_batch_release_on(batch, nullptr), PF_FAILED_PRECONDITION) << "it has two owners";
  pf_batch_release(batch);
  EXPECT_EQ(session_.Released(0), 0U);
  EXPECT_EQ(pf_batch_release_on(batch, nullptr), PF_OK);
  EXPECT_EQ(session_.Released(0), 1U);
  EXPECT_EQ(pf_batch_release_on(batch, nullptr), PF_FAILED_PRECONDITION) << "it is nobody's";
}

TEST_F(ServedFeedTest, TheLatestBatchCanBeGivenBackUnused) {
  session_.Publish();
  session_.Publish();
  pf_batch* first = nullptr;
  pf_batch* second = nullptr;
  ASSERT_EQ(pf_next(feed_.get(), 0, &first), PF_OK);
  ASSERT_EQ(pf_next(feed_.get(), 0, &second), PF_OK);
  EXPECT_EQ(pf_batch_give_back(first), PF_FAILED_PRECONDITION) << "it is not the latest";
  pf_batch_retain(second);
  EXPECT_EQ(pf_batch_give_back(second), PF_FAILED_PRECONDITION) << "it has two owners";
  pf_batch_release(second);
  ASSERT_EQ(pf_batch_give_back(second), PF_OK);
  EXPECT_EQ(pf_batch_give_back(second), PF_FAILED_PRECONDITION) << "it is nobody's";
  EXPECT_EQ(session_.Released(1), 0U);
  ASSERT_EQ(pf_next(feed_.get(), 0, &second), PF_OK);
  pf_batch_info info;
  pf_batch_info_init(&info, sizeof(info));
  ASSERT_EQ(pf_get_batch_info(second, &info), PF_OK);
  EXPECT_EQ(info.index, 1U);
  pf_batch_release(second);
  EXPECT_EQ(session_.Released(1), 2U);  // its generation
  pf_batch_release(first);
}

TEST_F(ServedFeedTest, SecondReleaseOfABatchChangesNothing) {
  session_.Publish();
  pf_batch* first = nullptr;
  ASSERT_EQ(pf_next(feed_.get(), 0, &first), PF_OK);
  pf_batch_release(first);
  session_.Publish([](BatchDescriptor& batch) { batch.slot = 0; });
  pf_batch* second = nullptr;
  ASSERT_EQ(pf_next(feed_.get(), 0, &second), PF_OK);
  pf_batch_release(first);
  EXPECT_EQ(session_.Released(0), 1U);
  pf_batch_release(second);
  pf_batch_release(first);
  EXPECT_EQ(session_.Released(0), 2U) << "a late release overwrote a newer one";
  EXPECT_THAT(log_.lines, SizeIs(2));
  pf_batch_info info;
  pf_batch_info_init(&info, sizeof(info));
  EXPECT_EQ(pf_get_batch_info(first, &info), PF_FAILED_PRECONDITION);
}

TEST_F(ClientFeedTest, HeldBatchOutlivesItsFeedAndTheFarewellFollowsIt) {
  const auto daemon = Daemon();
  auto feed = std::make_unique<Feed>(kSpec, Options());
  FakeSession& session = daemon->Session(0);
  session.Publish();
  std::optional<Batch> batch = feed->Next();
  const TensorView image = (*batch)["image"];
  feed.reset();
  session.arena.data()[3] = std::byte{42};
  EXPECT_EQ(image.data_as<uint8_t>()[3], 42);
  batch.reset();
  EXPECT_EQ(session.Released(0), 1U);
  daemon->WaitForBye(0);
}

TEST_F(ServedFeedTest, EmptyBatchesAreGivenLikeOthersWithOneWarning) {
  for (int i = 0; i < 2; ++i)
    session_.Publish([](BatchDescriptor& batch) { batch.skipped = std::exchange(batch.samples, 0); });
  std::optional<Batch> batch = feed_.Next();
  EXPECT_EQ(batch->samples(), 0U);
  EXPECT_EQ((*batch)["image"].shape()[0], 0);
  EXPECT_EQ((*batch)["image"].bytes(), 0U);
  EXPECT_THAT(feed_.Cursor(), HasSubstr(R"("position":"4")"));
  batch = feed_.Next();
  EXPECT_EQ(session_.Released(0), 1U);
  batch->Write(nullptr, std::vector<void*>(feed_.Outputs().size()));  // nothing to write, nowhere
  EXPECT_EQ(session_.Released(1), 2U);
  ASSERT_THAT(log_.lines, SizeIs(1));
  EXPECT_THAT(log_.lines[0], HasSubstr("batch 0 of epoch 0 is empty: all its 4 samples are bad"));
}

TEST_F(ServedFeedTest, BadSamplesAreToldAtFirstAndAtTheEndOfTheEpoch) {
  for (const uint32_t zeroed : {0, 1, 2, 0, 5}) {  // behind the fourth, a short epoch
    session_.Publish([&](BatchDescriptor& batch) {
      batch.zeroed = zeroed;
      batch.flags = batch.batch_index >= 3 ? kFlagLastOfEpoch : 0;
    });
    ASSERT_TRUE(feed_.Next().has_value());
  }
  ASSERT_THAT(log_.lines, SizeIs(2));
  EXPECT_THAT(log_.lines[0], HasSubstr("1 bad sample, up to batch 1 of epoch 0, made zeros"));
  EXPECT_THAT(log_.lines[1], HasSubstr("3 bad samples, up to batch 3 of epoch 0, made zeros"));
}

TEST_F(ServedFeedTest, AnEmptyBatchDoesNotHideOtherBadSamples) {
  for (const uint32_t skipped : {1, 2, 4}) {
    session_.Publish([&](BatchDescriptor& batch) { batch.samples -= batch.skipped = skipped; });
    ASSERT_TRUE(feed_.Next().has_value());
  }
  ASSERT_THAT(log_.lines, SizeIs(3));
  EXPECT_THAT(log_.lines[0], HasSubstr("1 bad sample, up to batch 0 of epoch 0, left out"));
  EXPECT_THAT(log_.lines[1], HasSubstr("batch 2 of epoch 0 is empty"));
  EXPECT_THAT(log_.lines[2], HasSubstr("7 bad samples, up to batch 2 of epoch 0, left out"));
}

TEST_F(ClientFeedTest, EndAndFailureComeBehindThePublishedBatches) {
  const auto daemon = Daemon();
  Feed ended(kSpec, Options());
  daemon->Session(0).Publish();
  daemon->Session(0).SetState(FeedState::kEnded);
  EXPECT_EQ(NextCode(ended), PF_OK);
  EXPECT_EQ(ended.Next(), std::nullopt);
  EXPECT_EQ(NextCode(ended), PF_OUT_OF_RANGE);

  Feed failed(kSpec, Options());
  daemon->Session(1).Publish();
  daemon->Session(1).Fail(PF_DATA_LOSS, "sample 7: bad", 13);
  EXPECT_EQ(NextCode(failed), PF_OK);
  EXPECT_EQ(NextCode(failed), PF_DATA_LOSS);
  EXPECT_STREQ(pf_last_error(), "sample 7: bad");
}

TEST_F(ServedFeedTest, AnEvictionWhoseLimitIsNotKnownYetIsNotWaitedForWithoutEnd) {
  session_.Publish();
  session_.Publish();
  session_.page().limit.store(kUnlimited);
  session_.Fail(PF_ABORTED, "evicted", 7);
  session_.SetState(FeedState::kEvicted);
  EXPECT_EQ(NextCode(feed_, PF_ONLY_LOOK), PF_DEADLINE_EXCEEDED);
  EXPECT_EQ(NextCode(feed_, 20), PF_DEADLINE_EXCEEDED);
  EXPECT_THAT(pf_last_error(), HasSubstr("the daemon is evicting this feed"));
  session_.page().limit.store(1);
  EXPECT_EQ(NextCode(feed_, PF_ONLY_LOOK), PF_OK);
  EXPECT_EQ(NextCode(feed_), PF_ABORTED);
}

TEST_F(ServedFeedTest, WaitingEndsWithAPublishAndIsAccounted) {
  std::thread publisher([&] {
    while (session_.release_page().waiting_since_ns.load() == 0) std::this_thread::yield();
    session_.Publish();
  });
  EXPECT_EQ(feed_.Next()->index(), 0U);
  publisher.join();
  EXPECT_GT(session_.release_page().wait_ns.load(), 0U);
  EXPECT_EQ(session_.release_page().waiting_since_ns.load(), 0U);
}

TEST_F(ClientFeedTest, LostDaemonIsFoundAgainBehindTheLastBatchGiven) {
  auto daemon = Daemon();
  Feed feed(kSpec, Options());
  for (int i = 0; i < 3; ++i) daemon->Session(0).Publish();
  const Batch held = *feed.Next();
  daemon.reset();
  EXPECT_EQ(feed.Next()->index(), 1U);
  EXPECT_EQ(feed.Next()->index(), 2U) << "what was published before the end is still given";
  EXPECT_EQ(NextCode(feed, 120), PF_DEADLINE_EXCEEDED);
  EXPECT_THAT(pf_last_error(), HasSubstr("the feed has no session with the daemon at"));

  daemon = Daemon({.opened = [](FakeSession& session) { session.Publish(); }});
  EXPECT_EQ(feed.Next()->index(), 3U);
  EXPECT_EQ(daemon->Session(0).request.cursor().position(), 12U);
  EXPECT_EQ(daemon->Session(0).request.cursor().fingerprint(), "00000000000f00d0");
  EXPECT_EQ(feed.Info().reconnects, 1U);
  EXPECT_EQ(held["image"].data_as<uint8_t>()[0], 0) << "a batch of the lost session stays readable";
  EXPECT_THAT(log_.lines, SizeIs(2));
}

TEST_F(ClientFeedTest, PollingFindsALostDaemonAgain) {
  auto daemon = Daemon();
  Feed feed(kSpec, Options());
  daemon->Session(0);
  daemon.reset();
  EXPECT_EQ(NextCode(feed, PF_ONLY_LOOK), PF_DEADLINE_EXCEEDED);
  EXPECT_THAT(log_.lines, SizeIs(0)) << "only looks";
  EXPECT_EQ(NextCode(feed, 0), PF_DEADLINE_EXCEEDED);
  EXPECT_THAT(pf_last_error(), HasSubstr(" yet: connect"));
  EXPECT_THAT(log_.lines, ElementsAre(HasSubstr("the daemon is gone")));
  daemon = Daemon({.opened = [](FakeSession& session) { session.Publish(); }});
  pf_result result = PF_DEADLINE_EXCEEDED;
  while (result == PF_DEADLINE_EXCEEDED) result = NextCode(feed, 0);
  EXPECT_EQ(result, PF_OK);
  EXPECT_EQ(feed.Info().reconnects, 1U);
}

TEST_F(ClientFeedTest, ATrainerThatCameBackLateStillTries) {
  auto daemon = Daemon();
  FeedOptions options = Options();
  options.reconnect_timeout = milliseconds(100);
  Feed feed(kSpec, options);
  daemon->Session(0);
  daemon.reset();
  EXPECT_EQ(NextCode(feed, 0), PF_DEADLINE_EXCEEDED);
  daemon = Daemon({.opened = [](FakeSession& session) { session.Publish(); }});
  std::this_thread::sleep_for(options.reconnect_timeout);  // it does something else
  EXPECT_EQ(feed.Next()->index(), 0U);
}

TEST_F(ClientFeedTest, DrainingDaemonIsLeftOnceItsBatchesAreTaken) {
  const auto daemon = Daemon({.opened = [](FakeSession& session) { session.Publish(); }});
  Feed feed(kSpec, Options());
  daemon->Session(0).SetState(FeedState::kDraining);
  EXPECT_EQ(feed.Next()->index(), 0U);
  EXPECT_EQ(feed.Next()->index(), 1U);
  EXPECT_EQ(daemon->session_count(), 2U);
}

TEST_F(ClientFeedTest, ChangedDatasetIsNotResumed) {
  auto daemon = Daemon();
  Feed feed(kSpec, Options());
  daemon->Session(0);
  daemon.reset();
  daemon = Daemon({.offer = [](v1::OpenFeedResponse& offer) { offer.set_fingerprint("000000000000beef"); }});
  EXPECT_EQ(NextCode(feed, -1), PF_FAILED_PRECONDITION);
  EXPECT_THAT(pf_last_error(), AllOf(HasSubstr("00000000000f00d0"), HasSubstr("000000000000beef")));
  EXPECT_EQ(NextCode(feed, -1), PF_FAILED_PRECONDITION) << "no later try can cure it";
}

TEST_F(ClientFeedTest, ReconnectTimeoutEndsTheWait) {
  auto daemon = Daemon();
  FeedOptions options = Options();
  options.reconnect_timeout = milliseconds(150);
  Feed feed(kSpec, options);
  daemon->Session(0);
  daemon.reset();
  EXPECT_EQ(NextCode(feed, -1), PF_UNAVAILABLE);
  EXPECT_THAT(pf_last_error(), HasSubstr("did not come back within 0.15"));
}

TEST_F(ClientFeedTest, FullMemoryIsWaitedForOnReconnectOnly) {
  std::atomic<int> refusals{1};
  const auto refuse = [&](const v1::OpenFeedRequest&) {
    return refusals.fetch_sub(1) > 0 ? grpc::Status(grpc::RESOURCE_EXHAUSTED, "pool is full")
                                     : grpc::Status::OK;
  };
  const auto daemon = Daemon({.refuse = refuse, .opened = [](FakeSession& session) { session.Publish(); }});
  EXPECT_THROW(Feed(kSpec, Options()), Error);
  Feed feed(kSpec, Options());
  ASSERT_EQ(feed.Next()->index(), 0U);
  refusals = 2;
  daemon->HangUp(0);
  EXPECT_EQ(feed.Next()->index(), 1U);
  EXPECT_THAT(log_.lines, Contains(AllOf(HasSubstr("not reconnected"), HasSubstr("pool is full"))));
}

TEST_F(ClientFeedTest, SeekReopensOnlyWhenThePositionChanges) {
  const auto daemon = Daemon({.opened = [](FakeSession& session) { session.Publish(); }});
  Feed feed(kSpec, Options());
  const std::string start = feed.Cursor();
  feed.Seek(start);
  feed.SeekEpoch(0);
  EXPECT_EQ(daemon->session_count(), 1U);
  const Batch held = *feed.Next();
  feed.Seek(feed.Cursor());
  EXPECT_EQ(daemon->session_count(), 1U);
  feed.Seek(start);
  EXPECT_EQ(daemon->session_count(), 2U);
  EXPECT_EQ(feed.Next()->index(), 0U);
  EXPECT_EQ(held["image"].data_as<uint8_t>()[0], 0);
  feed.SeekEpoch(3);
  EXPECT_EQ(daemon->session_count(), 3U);
  EXPECT_EQ(daemon->Session(2).request.cursor().epoch(), 3U);
  EXPECT_EQ(daemon->Session(2).request.cursor().position(), 0U);
}

TEST_F(ServedFeedTest, NextEpochAfterTheLastBatchCostsNothing) {
  session_.Publish([](BatchDescriptor& batch) { batch.flags = kFlagLastOfEpoch; });
  EXPECT_TRUE(feed_.Next()->last_of_epoch());
  feed_.SeekEpoch(1);
  EXPECT_EQ(daemon_.session_count(), 1U);
  feed_.SeekEpoch(0);
  EXPECT_EQ(daemon_.session_count(), 2U);
}

TEST_F(ClientFeedTest, ASeekWhileTheDaemonIsAwayGoesOnThereOnceItIsBack) {
  auto daemon = Daemon();
  Feed feed(kSpec, Options());
  daemon->Session(0);
  daemon.reset();
  feed.SeekEpoch(3);
  EXPECT_EQ(NextCode(feed, 50), PF_DEADLINE_EXCEEDED);
  EXPECT_THAT(log_.lines, ElementsAre(HasSubstr("the daemon cannot be reached: connect")));
  daemon = Daemon({.opened = [](FakeSession& session) { session.Publish(); }});
  EXPECT_EQ(feed.Next()->index(), 0U);
  EXPECT_EQ(daemon->Session(0).request.cursor().epoch(), 3U);
  EXPECT_EQ(feed.Info().reconnects, 1U);

  FeedOptions once = Options();
  once.reconnect_timeout = milliseconds(0);
  Feed other(kSpec, once);
  daemon.reset();
  EXPECT_EQ(pf_seek_epoch(other.get(), 3), PF_UNAVAILABLE);
}

TEST_F(ClientFeedTest, ASeekWithoutMemoryNamesTheBatchesThatKeepIt) {
  std::atomic<bool> full{false};
  const auto daemon = Daemon({.refuse =
                                  [&](const v1::OpenFeedRequest&) {
                                    return full ? grpc::Status(grpc::RESOURCE_EXHAUSTED, "the pool is full")
                                                : grpc::Status::OK;
                                  },
                              .opened = [](FakeSession& session) { session.Publish(); }});
  Feed feed(kSpec, Options());
  std::optional<Batch> held = feed.Next();
  full = true;
  EXPECT_EQ(pf_seek_epoch(feed.get(), 3), PF_RESOURCE_EXHAUSTED);
  EXPECT_THAT(pf_last_error(),
              HasSubstr("the pool is full; 1 batches of this feed that are still held keep its memory"));
  EXPECT_EQ(NextCode(feed, 0), PF_DEADLINE_EXCEEDED);
  EXPECT_THAT(pf_last_error(), HasSubstr(" yet: the pool is full"));
  full = false;
  EXPECT_EQ(feed.Next()->index(), 1U) << "it kept its position";
}

TEST_F(ClientFeedTest, RefusedSeekLeavesTheFeedWhereItWas) {
  const auto refuse = [](const v1::OpenFeedRequest& request) {
    return request.cursor().epoch() == 9
               ? grpc::Status(grpc::INVALID_ARGUMENT, "cursor.epoch: behind the last epoch")
               : grpc::Status::OK;
  };
  const auto daemon = Daemon({.refuse = refuse, .opened = [](FakeSession& session) { session.Publish(); }});
  FeedOptions options = Options();
  options.reconnect_timeout = std::chrono::milliseconds(0);  // the daemon is not lost
  Feed feed(kSpec, options);
  EXPECT_EQ(feed.Next()->index(), 0U);
  EXPECT_EQ(pf_seek_epoch(feed.get(), 9), PF_INVALID_ARGUMENT);
  EXPECT_STREQ(pf_last_error(), "cursor.epoch: behind the last epoch");
  EXPECT_EQ(feed.Next()->index(), 1U);
  EXPECT_EQ(feed.Info().reconnects, 0U);
  EXPECT_THAT(log_.lines, SizeIs(0));
}

TEST_F(ClientFeedTest, RefusedSeekDoesNotCureAFailedFeed) {
  const auto refuse = [](const v1::OpenFeedRequest& request) {
    return request.cursor().epoch() == 9 ? grpc::Status(grpc::INVALID_ARGUMENT, "cursor.epoch: behind")
                                         : grpc::Status::OK;
  };
  const auto daemon = Daemon({.refuse = refuse});
  Feed feed(kSpec, Options());
  const std::string text = "decode 'cat.jpg'";
  daemon->Session(0).Fail(PF_DATA_LOSS, text, static_cast<uint32_t>(text.size()));
  EXPECT_EQ(NextCode(feed, 1000), PF_DATA_LOSS);
  EXPECT_EQ(pf_seek_epoch(feed.get(), 9), PF_INVALID_ARGUMENT);
  EXPECT_EQ(NextCode(feed, 1000), PF_DATA_LOSS);
  feed.SeekEpoch(1);
  EXPECT_EQ(NextCode(feed, 0), PF_DEADLINE_EXCEEDED);
}

TEST_F(ServedFeedTest, CursorIsCopiedWhenItFits) {
  const std::string cursor = feed_.Cursor();
  std::vector<char> buffer(cursor.size(), 'x');
  size_t needed = 0;
  EXPECT_EQ(pf_cursor(feed_.get(), buffer.data(), buffer.size(), &needed), PF_OUT_OF_RANGE);
  EXPECT_EQ(needed, cursor.size() + 1);
  EXPECT_EQ(buffer[0], 'x');
}

TEST_F(ClientFeedTest, ForkedChildDisturbsNothing) {
  const auto daemon = Daemon();
  auto feed = std::make_unique<Feed>(kSpec, Options());
  FakeSession& session = daemon->Session(0);
  session.Publish();
  session.Publish();
  pf_batch* batch = nullptr;
  ASSERT_EQ(pf_next(feed->get(), 0, &batch), PF_OK);
  const int exit_status = ExitStatusOfFork([&] {
    pf_batch* stolen = nullptr;
    const bool refused = pf_next(feed->get(), 0, &stolen) == PF_FAILED_PRECONDITION;
    pf_batch_release(batch);
    feed.reset();
    return refused ? 0 : 1;
  });
  EXPECT_EQ(exit_status, 0);
  EXPECT_EQ(session.Released(0), 0U);
  EXPECT_EQ(NextCode(*feed), PF_OK) << "the session still lives";
  pf_batch_release(batch);
  EXPECT_EQ(session.Released(0), 1U);
}

TEST_F(ServedFeedTest, RangeForRunsToTheEnd) {
  for (int i = 0; i < 3; ++i) session_.Publish();
  session_.SetState(FeedState::kEnded);
  uint64_t seen = 0;
  for (const Batch& batch : feed_) EXPECT_EQ(batch.index(), seen++);
  EXPECT_EQ(seen, 3U);
}

}  // namespace
}  // namespace pinfeed
