// SPDX-License-Identifier: Apache-2.0
// The spans of a feed, with a client whose words the test writes.
#include "server/trace/feed_trace.h"

#include <algorithm>
#include <map>

#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {
namespace {

class FeedTraceTest : public FeedTest {
 protected:
  FeedTraceTest() : FeedTest(Producer::kNative) {}
  std::vector<TraceSpan> Of(SpanKind kind) const {
    std::vector<TraceSpan> found;
    std::copy_if(spans_.begin(), spans_.end(), std::back_inserter(found),
                 [&](const TraceSpan& span) { return span.kind == kind; });
    return found;
  }
  void Take(Tracer::Recording& recording) {
    const std::vector<TraceSpan> more = recording.Take();
    spans_.insert(spans_.end(), more.begin(), more.end());
  }
  static void SetTaken(PageClient& client, uint64_t taken) {
    client.words().taken.store(taken, std::memory_order_relaxed);
  }
  static void SetWaitingSince(PageClient& client, uint64_t since_ns) {
    client.words().waiting_since_ns.store(since_ns, std::memory_order_relaxed);
  }
  // Drains the feed, as a trainer that is always given batches at once.
  static void Drain(Feed& feed, PageClient& client) {
    while (const auto batch = client.Next()) client.Release(*batch, feed);
  }

  std::vector<TraceSpan> spans_;
};

TEST_F(FeedTraceTest, EveryBatchIsReadThenPublishedThenLent) {
  const auto feed = Make(Spec(10, 1), std::make_shared<NumberDataset>(200));
  PageClient client(*feed);
  client.participant().pages->set_session(42);
  auto recording = std::move(tracer_.Start(kOwner)).value();
  ASSERT_TRUE(feed->Attach(client.participant()).ok());
  Drain(*feed, client);
  feed->ObserveForTrace(true);
  Take(recording);

  std::map<uint64_t, std::map<SpanKind, TraceSpan>> batches;
  for (const TraceSpan& span : spans_) {
    EXPECT_LE(span.begin_ns, span.end_ns);
    EXPECT_EQ(span.feed, feed->id());
    if (span.kind != SpanKind::kStep && span.kind != SpanKind::kWait)
      batches[span.batch].emplace(span.kind, span);
  }
  ASSERT_EQ(batches.size(), 20U);
  for (auto& [number, kinds] : batches) {
    ASSERT_TRUE(kinds.contains(SpanKind::kRead) && kinds.contains(SpanKind::kFill) &&
                kinds.contains(SpanKind::kPublish) && kinds.contains(SpanKind::kLent))
        << number;
    EXPECT_LE(kinds[SpanKind::kFill].begin_ns, kinds[SpanKind::kRead].begin_ns);
    EXPECT_LE(kinds[SpanKind::kRead].end_ns, kinds[SpanKind::kFill].end_ns);
    EXPECT_LE(kinds[SpanKind::kFill].end_ns, kinds[SpanKind::kPublish].begin_ns);
    EXPECT_LE(kinds[SpanKind::kPublish].end_ns, kinds[SpanKind::kLent].begin_ns);
    EXPECT_EQ(kinds[SpanKind::kPublish].session, 42U);
    EXPECT_EQ(kinds[SpanKind::kFill].slot, kinds[SpanKind::kLent].slot);
    EXPECT_EQ(kinds[SpanKind::kFill].samples, 10U);
  }
}

TEST_F(FeedTraceTest, OffMeansNoSpans) {
  const auto feed = Make(Spec(10, 1), std::make_shared<NumberDataset>(100));
  AttachedClient client(*feed);
  Drain(*feed, client);
  feed->ObserveForTrace(true);
  feed->Depart(client.participant(), Ended());
  auto recording = std::move(tracer_.Start(std::nullopt)).value();
  Take(recording);
  EXPECT_TRUE(spans_.empty());
}

TEST_F(FeedTraceTest, FeedsOfOthersAreNotSeen) {
  const auto feed = Make(Spec(10, 1), std::make_shared<NumberDataset>(100));
  PageClient client(*feed);
  auto recording = std::move(tracer_.Start(kOwner + 1)).value();
  ASSERT_TRUE(feed->Attach(client.participant()).ok());
  Drain(*feed, client);
  feed->ObserveForTrace(true);
  feed->Depart(client.participant(), Ended());
  Take(recording);
  EXPECT_TRUE(spans_.empty());
}

// The reads wait for `go`, so that the client can wait for a batch as long as the test wants.
TEST_F(FeedTraceTest, WaitsAndStepsComeFromTheClientsWords) {
  std::atomic<bool> go{false};
  const auto feed =
      Make(Spec(10, 1), std::make_shared<NumberDataset>(20, std::set<uint64_t>{}, [&](uint64_t) {
             while (!go.load()) std::this_thread::yield();
           }));
  PageClient client(*feed);
  auto recording = std::move(tracer_.Start(std::nullopt)).value();
  ASSERT_TRUE(feed->Attach(client.participant()).ok());
  feed->ObserveForTrace(false);
  const uint64_t since = TraceClockNs();
  SetWaitingSince(client, since);
  feed->ObserveForTrace(false);
  const uint64_t before_publish = TraceClockNs();
  go = true;
  WaitFor([&] { return client.ready() == 2; });
  SetWaitingSince(client, 0);
  SetTaken(client, 1);
  feed->ObserveForTrace(false);
  const uint64_t before_second = TraceClockNs();
  SetTaken(client, 2);
  feed->ObserveForTrace(false);
  feed->ObserveForTrace(true);
  Take(recording);

  const std::vector<TraceSpan> waits = Of(SpanKind::kWait);
  ASSERT_EQ(waits.size(), 1U);
  EXPECT_EQ(waits[0].begin_ns, since);
  EXPECT_GE(waits[0].end_ns, before_publish);
  EXPECT_EQ(waits[0].batch, 0U);
  EXPECT_EQ(waits[0].samples, 10U);
  const std::vector<TraceSpan> published = Of(SpanKind::kPublish);
  ASSERT_EQ(published.size(), 2U);
  EXPECT_EQ(waits[0].end_ns, published[0].begin_ns);
  const std::vector<TraceSpan> steps = Of(SpanKind::kStep);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].begin_ns, waits[0].end_ns);
  EXPECT_EQ(steps[0].batch, 0U);
  EXPECT_GE(steps[0].end_ns, before_second);
  EXPECT_EQ(steps[1].batch, 1U);
  EXPECT_TRUE(steps[1].open);
  for (const TraceSpan& lent : Of(SpanKind::kLent)) EXPECT_TRUE(lent.open);
}

TEST_F(FeedTraceTest, WordsThatCannotBeTrueAreNotDrawn) {
  const auto feed = Make(Spec(10, 1), std::make_shared<NumberDataset>(40));
  PageClient client(*feed);
  const uint64_t began = TraceClockNs();
  auto recording = std::move(tracer_.Start(std::nullopt)).value();
  SetTaken(client, UINT64_MAX);
  SetWaitingSince(client, UINT64_MAX);  // in the future
  ASSERT_TRUE(feed->Attach(client.participant()).ok());
  feed->ObserveForTrace(false);
  for (const uint64_t word : {uint64_t{1}, UINT64_MAX / 2, uint64_t{0}, UINT64_MAX}) {
    SetWaitingSince(client, word);
    SetTaken(client, word * 3);
    feed->ObserveForTrace(false);
  }
  WaitFor([&] { return client.ready() == 4; });
  feed->ObserveForTrace(true);
  const uint64_t ended = TraceClockNs();
  Take(recording);
  for (const TraceSpan& span : spans_) {
    EXPECT_GE(span.begin_ns, began);
    EXPECT_LE(span.begin_ns, span.end_ns);
    EXPECT_LE(span.end_ns, ended);
  }
}

}  // namespace
}  // namespace pinfeed
