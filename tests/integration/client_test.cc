// SPDX-License-Identifier: Apache-2.0
// libpinfeed against a real daemon in another process: values, restarts, positions, what stays behind.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/client_daemon_fixture.h"

namespace pinfeed {
namespace {

size_t CountEntries(const char* directory) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    count += entry.path().empty() ? 0 : 1;
  return count;
}

// The threads of this process, once there are no more than `expected`: one that was joined may still be
// listed for a moment. What there is after 30 s, else.
size_t AwaitThreads(size_t expected) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  size_t threads = CountEntries("/proc/self/task");
  while (threads > expected && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    threads = CountEntries("/proc/self/task");
  }
  return threads;
}

// The dataset's indices of a batch, from the first token of each sample; checks every token on the way.
std::vector<size_t> Samples(const Batch& batch) {
  std::vector<size_t> samples;
  EXPECT_THROW(batch["x"].data_as<int32_t>(), pinfeed::Error);
  EXPECT_THROW(batch["x"].data_as<double>(), pinfeed::Error);
  EXPECT_THROW(batch["x"].data_as<uint64_t>(), pinfeed::Error);
  const auto* x = batch["x"].data_as<int64_t>();
  const auto* y = batch["y"].data_as<int64_t>();
  for (size_t i = 0; i < batch.samples(); ++i) {
    for (size_t k = 0; k < kSequence; ++k) {
      EXPECT_EQ(x[i * kSequence + k], x[i * kSequence] + static_cast<int64_t>(k));
      EXPECT_EQ(y[i * kSequence + k], x[i * kSequence + k] + 1);
    }
    samples.push_back(static_cast<size_t>(x[i * kSequence]) / kSequence);
  }
  return samples;
}

std::vector<std::vector<size_t>> Drain(Feed& feed, size_t batches) {
  std::vector<std::vector<size_t>> all;
  for (size_t i = 0; i < batches; ++i) all.push_back(Samples(*feed.Next()));
  return all;
}

TEST_F(ClientDaemonTest, AnEpochHoldsEverySampleOnceAndThenEnds) {
  Feed feed(Spec(R"(, "order": "SHUFFLE", "seed": 3, "epochs": 1)"), Options());
  const pf_feed_info info = feed.Info();
  EXPECT_EQ(info.dataset_samples, kSamples);
  EXPECT_EQ(info.batches_per_epoch, 15U);
  EXPECT_STREQ(info.backend, "host");
  std::multiset<size_t> seen;
  uint64_t index = 0;
  for (const Batch& batch : feed) {
    EXPECT_EQ(batch.index(), index++);
    EXPECT_EQ(batch.last_of_epoch(), index == 15);
    const std::vector<size_t> samples = Samples(batch);
    seen.insert(samples.begin(), samples.end());
  }
  EXPECT_EQ(seen.size(), kSamples);
  EXPECT_EQ(std::set<size_t>(seen.begin(), seen.end()).size(), kSamples);
}

TEST_F(ClientDaemonTest, NoThreadAndNoDescriptorStaysBehind) {
  { const Feed warm_up(Spec(), Options()); }
  const size_t threads = AwaitThreads(2);  // this one and the watchdog
  const size_t descriptors = CountEntries("/proc/self/fd");
  {
    Feed feed(Spec(), Options());
    EXPECT_EQ(AwaitThreads(threads), threads) << "gRPC left a thread running beside the trainer";
    Drain(feed, 20);
    StatusJson(Options().address);
  }
  EXPECT_EQ(AwaitThreads(threads), threads);
  EXPECT_EQ(CountEntries("/proc/self/fd"), descriptors);
}

TEST_F(ClientDaemonTest, KilledAndRestartedDaemonLosesAndRepeatsNothing) {
  // Few slots: what was published before a kill is still given, and must not reach to the end.
  const std::string spec = Spec(R"(, "order": "SHUFFLE", "seed": 9, "slots": 4)");
  Feed reference(spec, Options());
  const auto expected = Drain(reference, 40);
  Feed feed(spec, Options());
  auto batches = Drain(feed, 5);
  const Batch held = *feed.Next();
  batches.push_back(Samples(held));
  daemon_->Kill();
  Start();
  for (const auto& batch : Drain(feed, 20)) batches.push_back(batch);
  daemon_->Kill();
  Start();
  for (const auto& batch : Drain(feed, 14)) batches.push_back(batch);
  EXPECT_EQ(batches, expected);
  EXPECT_EQ(feed.Info().reconnects, 2U);
  EXPECT_EQ(Samples(held), expected[5]) << "a batch held over two restarts";
}

TEST_F(ClientDaemonTest, QueueLosesNothingWhenItsDaemonIsKilled) {
  constexpr int kMembers = 2;
  constexpr int kBatchesBefore = 5;
  const std::string spec = Spec(
      R"(, "order": "SHUFFLE", "seed": 4, "epochs": 4, "sharing": "QUEUE", "group": "g", "group_size": 2)");
  std::latch before(kMembers + 1);
  std::latch killed(1);
  std::array<std::multiset<size_t>, kMembers> seen;
  std::vector<std::thread> members;
  for (auto& mine : seen) {
    members.emplace_back([&] {
      Feed feed(spec, Options());
      const auto take = [&](const Batch& batch) {
        for (const size_t sample : Samples(batch)) mine.insert(batch.epoch() * kSamples + sample);
      };
      for (int i = 0; i < kBatchesBefore; ++i) take(*feed.Next());
      before.arrive_and_wait();
      killed.wait();
      for (const Batch& batch : feed) take(batch);
    });
  }
  before.arrive_and_wait();
  daemon_->Kill();
  Start();
  killed.count_down();
  for (std::thread& member : members) member.join();
  std::set<size_t> all(seen[0].begin(), seen[0].end());
  all.insert(seen[1].begin(), seen[1].end());
  EXPECT_EQ(all.size(), 4 * kSamples);
  // At least once: again come only those behind the earliest cursor, so few of them.
  EXPECT_LE(seen[0].size() + seen[1].size(), 4 * kSamples + 2 * kBatchesBefore * 7);
}

TEST_F(ClientDaemonTest, StoppedDaemonIsLeftInOrder) {
  Feed feed(Spec(), Options());
  auto batches = Drain(feed, 3);
  daemon_->Signal(SIGTERM);
  // What was published is still given; with the last of it the client leaves by itself, and the daemon can
  // end.
  const auto is_lost = [] {
    return std::string(pf_last_error()).find("has no session with the daemon at") != std::string::npos;
  };
  pf_result result = PF_OK;
  do {  // it may take a while to hear the signal
    pf_batch* batch = nullptr;
    result = pf_next(feed.get(), 500, &batch);
    if (result == PF_OK) batches.push_back(Samples(Batch(batch)));
  } while (result == PF_OK || (result == PF_DEADLINE_EXCEEDED && !is_lost()));
  EXPECT_EQ(result, PF_DEADLINE_EXCEEDED) << pf_last_error();
  EXPECT_EQ(daemon_->AwaitExit(), 0) << daemon_->Log();
  Start();
  for (const auto& each : Drain(feed, 5)) batches.push_back(each);
  Feed reference(Spec(), Options());
  EXPECT_EQ(batches, Drain(reference, batches.size()));
}

TEST_F(ClientDaemonTest, CursorResumesInANewFeed) {
  const std::string spec = Spec(R"(, "order": "SHUFFLE", "seed": 5)");
  Feed feed(spec, Options());
  Drain(feed, 11);
  const std::string cursor = feed.Cursor();
  const auto expected = Drain(feed, 20);  // into the second epoch
  Feed resumed(spec, Options(cursor));
  EXPECT_EQ(Drain(resumed, 20), expected);
  resumed.Seek(cursor);
  EXPECT_EQ(Drain(resumed, 20), expected);
}

TEST_F(ClientDaemonTest, CursorOfAnotherOrderIsRefusedAndTheFeedStaysWhereItWas) {
  Feed shuffled(Spec(R"(, "order": "SHUFFLE", "seed": 5)"), Options());
  Feed sequential(Spec(), Options());
  const auto expected = Drain(sequential, 12);
  sequential.SeekEpoch(0);
  Drain(shuffled, 3);
  EXPECT_EQ(pf_seek(sequential.get(), shuffled.Cursor().c_str()), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(),
              HasSubstr("cursor.order: the state is of a shuffled feed, this one is sequential"));
  EXPECT_EQ(Drain(sequential, 12), expected);
  EXPECT_EQ(pf_seek(shuffled.get(), sequential.Cursor().c_str()), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr("cursor.order: the state is of a sequential feed"));
}

TEST_F(ClientDaemonTest, EpochsAreSoughtBothWays) {
  const std::string spec = Spec(R"(, "order": "SHUFFLE", "seed": 5)");
  Feed feed(spec, Options());
  const auto first = Drain(feed, 15);
  feed.SeekEpoch(1);
  const auto second = Drain(feed, 15);
  EXPECT_NE(first, second);
  feed.SeekEpoch(0);
  EXPECT_EQ(Drain(feed, 15), first);
  feed.SeekEpoch(1);
  EXPECT_EQ(Drain(feed, 15), second);
}

TEST_F(ClientDaemonTest, MemoryIsFreeAgainWhenCloseReturns) {
  // Two such feeds do not fit the pool of 256 MiB together.
  const std::string spec = R"({"dataset": {"path": ")" + (dir_ / "tokens.bin").string() +
                           R"(", "sequence_length": 800}, "batch_size": 2500, "slots": 5})";
  for (int i = 0; i < 5; ++i) {
    Feed feed(spec, Options());
    EXPECT_GT(feed.Next()->samples(), 0U);
    EXPECT_THROW(Feed(spec, Options()), Error);
  }
}

// What a trainer waits for after its restart. The time is for people: a busy machine is no fault.
TEST_F(ClientDaemonTest, WarmDaemonGivesTheFirstBatchOfANewFeed) {
  { const Feed warm_up(Spec(), Options()); }
  std::vector<double> ms;
  for (int i = 0; i < 21; ++i) {
    const auto began = std::chrono::steady_clock::now();
    Feed feed(Spec(R"(, "order": "SHUFFLE")"), Options());
    const Batch batch = *feed.Next();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
    EXPECT_EQ(batch.samples(), 7U);
  }
  std::sort(ms.begin(), ms.end());
  std::cout << "from opening a feed to its first batch, warm daemon: median " << ms[10] << " ms, worst "
            << ms.back() << " ms\n";
}

TEST_F(ClientDaemonTest, RefusalsKeepTheirCodes) {
  const auto code_of = [&](const std::string& spec) {
    try {
      const Feed feed(spec, Options());
    } catch (const Error& error) {
      return error.code();
    }
    return PF_OK;
  };
  EXPECT_EQ(code_of(Spec(R"(, "rank": 4, "world_size": 2)")), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr("rank"));
  EXPECT_EQ(code_of(R"({"dataset": {"name": "nobody"}, "batch_size": 1})"), PF_NOT_FOUND);
  EXPECT_EQ(code_of(R"({"dataset": {"path": "/etc"}, "batch_size": 1})"), PF_PERMISSION_DENIED);
}

TEST_F(ClientDaemonTest, StatusAndDatasetsAreJson) {
  Feed feed(Spec(), Options());
  feed.Next();
  EXPECT_THAT(StatusJson(Options().address),
              AllOf(HasSubstr(R"("state":"ready")"), HasSubstr(R"("client_name":"client_daemon_test")")));
  EXPECT_THAT(DatasetsJson(Options().address), HasSubstr(dir_.path().string()));
}

TEST_F(ClientDaemonTest, CProgramReadsTheSame) {
  const ProgramResult result =
      RunProgram({PINFEED_TEST_C_PROGRAM, Spec(R"(, "epochs": 1)"), "15", "100"}, Options().address);
  EXPECT_EQ(result.exit_status, 0) << result.output;
}

TEST_F(ClientDaemonTest, ForkedChildrenCallWhileTheParentsThreadsDo) {
  // As a sanitizer does, whose own locks a child then waits for: another thread had them when it was forked.
  if (::mallinfo2().arena == 0) GTEST_SKIP() << "a sanitizer replaces the allocator";
  const std::string address = Options().address;
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&] {
      while (!stop) EXPECT_THAT(StatusJson(address), HasSubstr("ready"));
    });
  }
  for (int i = 0; i < 20; ++i) {
    const int exit_status = ExitStatusOfFork([&] {
      ::alarm(60);  // ends a child that hangs
      return StatusJson(address).find("ready") != std::string::npos ? 0 : 1;
    });
    EXPECT_EQ(exit_status, 0) << "child " << i;
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace pinfeed
