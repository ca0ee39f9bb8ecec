// SPDX-License-Identifier: Apache-2.0
#include "server/trace/tracer.h"

#include <thread>
#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uid_t kAnna = 1000;
constexpr uid_t kBert = 1001;

TraceSpan SpanNow(uint64_t batch = 0) {
  TraceSpan span{.kind = SpanKind::kFill, .batch = batch};
  span.begin_ns = span.end_ns = TraceClockNs();
  return span;
}

void Record(Tracer& tracer, uid_t owner, const TraceSpan& span) {
  tracer.Record(owner, {&span, 1});
}

TEST(TracerTest, KeepsNothingWhileNobodyRecords) {
  Tracer tracer;
  EXPECT_FALSE(tracer.Wants(kAnna));
  const TraceSpan before = SpanNow();
  Record(tracer, kAnna, before);
  auto recording = std::move(tracer.Start(std::nullopt)).value();
  EXPECT_TRUE(tracer.Wants(kAnna));
  EXPECT_EQ(recording.waiting(), 0U);
  Record(tracer, kAnna, before);  // ended before the recording began
  EXPECT_EQ(recording.waiting(), 0U);
  Record(tracer, kAnna, SpanNow(7));
  const std::vector<TraceSpan> spans = recording.Take();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].batch, 7U);
  EXPECT_EQ(recording.waiting(), 0U);
}

TEST(TracerTest, EndOfARecordingForgetsWhatItHeld) {
  Tracer tracer;
  {
    const auto recording = std::move(tracer.Start(std::nullopt)).value();
    Record(tracer, kAnna, SpanNow());
  }
  EXPECT_FALSE(tracer.Wants(kAnna));
  Record(tracer, kAnna, SpanNow());
  const auto next = std::move(tracer.Start(std::nullopt)).value();
  EXPECT_EQ(next.waiting(), 0U);
}

TEST(TracerTest, OneRecordingAtATime) {
  Tracer tracer;
  {
    const auto recording = std::move(tracer.Start(kAnna)).value();
    EXPECT_EQ(tracer.Start(std::nullopt).status().code(), Code::kResourceExhausted);
  }
  EXPECT_TRUE(tracer.Start(std::nullopt).ok());
}

TEST(TracerTest, OwnersSeeTheirOwnOnly) {
  Tracer tracer;
  auto recording = std::move(tracer.Start(kBert)).value();
  EXPECT_FALSE(tracer.Wants(kAnna));
  EXPECT_TRUE(tracer.Wants(kBert));
  Record(tracer, kAnna, SpanNow(1));  // asked while another recording ran
  Record(tracer, kBert, SpanNow(2));
  const std::vector<TraceSpan> spans = recording.Take();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].batch, 2U);
}

TEST(TracerTest, MemoryIsBoundedAndTheRestCounted) {
  Tracer tracer;
  auto recording = std::move(tracer.Start(std::nullopt)).value();
  const std::vector<TraceSpan> many(Tracer::kCapacity + 10, SpanNow());
  tracer.Record(kAnna, many);
  EXPECT_EQ(recording.waiting(), Tracer::kCapacity);
  EXPECT_EQ(recording.lost(), 10U);
  EXPECT_EQ(recording.Take().size(), Tracer::kCapacity);
  Record(tracer, kAnna, SpanNow());
  EXPECT_EQ(recording.Take().size(), 1U);
  EXPECT_EQ(recording.lost(), 10U);
}

TEST(TracerTest, ManyThreadsLoseNothing) {
  Tracer tracer;
  auto recording = std::move(tracer.Start(std::nullopt)).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < 1000; ++i) Record(tracer, kAnna, SpanNow(i));
    });
  }
  size_t taken = 0;
  while (taken < 4000) taken += recording.Take().size();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 4000U);
  EXPECT_EQ(recording.lost(), 0U);
}

TEST(TracerTest, WorkThatFollowsCloselyIsOneSpan) {
  Tracer tracer;
  auto recording = std::move(tracer.Start(std::nullopt)).value();
  const uint64_t now = TraceClockNs();
  {
    TraceSpan like;
    like.feed = 3;
    WorkSpans work(tracer, kAnna, like);
    work.Add(SpanKind::kRead, now, now + 1000);
    work.Add(SpanKind::kRead, now + 1500, now + 3000);      // the next row
    work.Add(SpanKind::kDecode, now + 3000, now + 90'000);  // another kind
    work.Add(SpanKind::kRead, now + 90'000, now + 90'100);  // too short to be seen
    work.Add(SpanKind::kRead, now + 200'000, now + 300'000);
    EXPECT_EQ(recording.waiting(), 0U);
  }
  const std::vector<TraceSpan> spans = recording.Take();
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].kind, SpanKind::kRead);
  EXPECT_EQ(spans[0].end_ns, now + 3000);
  EXPECT_EQ(spans[1].kind, SpanKind::kDecode);
  EXPECT_EQ(spans[2].begin_ns, now + 200'000);
  for (const TraceSpan& span : spans) {
    EXPECT_EQ(span.feed, 3U);
    EXPECT_EQ(span.thread, ThreadNumber());
  }
}

}  // namespace
}  // namespace pinfeed
