// SPDX-License-Identifier: Apache-2.0
#include "server/loading/progress_check.h"

#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <latch>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/log.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using std::chrono::milliseconds;
using ::testing::ContainsRegex;

class GatedTask final : public FillTask {
 public:
  explicit GatedTask(std::latch& gate) : FillTask(std::make_shared<FeedShare>(0, 7), 1, 1), gate_(gate) {}
  void Run(uint32_t /*begin*/, uint32_t /*end*/, SampleScratch& scratch) override {
    scratch.Begin(12);
    gate_.wait();
  }
  void Done() override {}

 private:
  std::latch& gate_;
};

// Two GPUs, of which one has not ended a copy for so long.
std::vector<GpuSnapshot> Gpus(milliseconds stalled) {
  GpuSnapshot well;
  well.uuid = "GPU-well";
  GpuSnapshot ill;
  ill.uuid = "GPU-ill";
  ill.copy_threads = {{"copy-1", milliseconds(0)}, {"peer-1", stalled}};
  return {well, ill};
}

// The state is another thread's matter and comes soon; the test's own time limit is the watchdog.
std::string Await(ProgressCheck& check, bool stuck) {
  while (true) {
    std::string found = check.Stuck();
    if (found.empty() != stuck) return found;
    std::this_thread::yield();
  }
}

TEST(ProgressCheckTest, ABlockedWorkerIsStuckUntilItMoves) {
  std::latch gate(1);
  WorkerPool pool(2);
  pool.Start();
  ProgressCheck check({pool}, milliseconds(1));
  EXPECT_EQ(check.Stuck(), "");  // idle
  pool.Submit(std::make_shared<GatedTask>(gate));
  EXPECT_THAT(Await(check, true), ContainsRegex("a worker has been at one piece of work for [0-9]+ s"));
  gate.count_down();
  EXPECT_EQ(Await(check, false), "");
}

TEST(ProgressCheckTest, WhatHangsIsNamed) {
  std::latch gate(1);
  WorkerPool pool(2);
  pool.Start();
  ProgressCheck check({pool, nullptr,
                       [](uint64_t feed, uint64_t sample) {
                         return std::to_string(feed) + "-" + std::to_string(sample) + ".jpg";
                       }},
                      milliseconds(100));
  pool.Submit(std::make_shared<GatedTask>(gate));
  pool.Submit(std::make_shared<GatedTask>(gate));
  const auto both_hang = [&pool] {
    const auto chunks = pool.ChunksLongerThan(milliseconds(100));
    return std::count_if(chunks.begin(), chunks.end(), [](const auto& one) { return one.sample == 12; }) == 2;
  };
  while (!both_hang()) std::this_thread::yield();
  const std::vector<HungThread> hung = check.Hung({});
  ASSERT_EQ(hung.size(), 2U);
  EXPECT_GE(hung[0].age, hung[1].age);
  EXPECT_EQ(std::set<std::string>({hung[0].thread, hung[1].thread}),
            (std::set<std::string>{"worker0", "worker1"}));
  EXPECT_EQ(hung[1].feed, 7U);
  EXPECT_EQ(hung[1].sample, 12U);
  EXPECT_EQ(hung[1].sample_name, "7-12.jpg");
  EXPECT_THAT(Await(check, true),
              HasSubstr("(stuck_timeout): sample 12 of feed 7, 7-12.jpg; more workers that hang: 1"));
  gate.count_down();
  while (pool.progress() < 2) std::this_thread::yield();  // one that went on ends no stay of the other
  EXPECT_EQ(check.Stuck(), "");
  EXPECT_TRUE(check.Hung({}).empty());
}

// Soon enough to tell at a limit from when on it matters, never so often that it costs anything.
TEST(ProgressCheckTest, ItWantsToBeLookedAtSeveralTimesALimit) {
  const WorkerPool pool(1);
  EXPECT_EQ(ProgressCheck({pool}, milliseconds(8000)).interval(), milliseconds(1000));
  EXPECT_EQ(ProgressCheck({pool}, milliseconds(1)).interval(), milliseconds(50));
  EXPECT_EQ(ProgressCheck({pool}, std::chrono::hours(24)).interval(), milliseconds(10000));
}

// Feeds whose storage answers go on: only once they have nothing to show either is the daemon stuck.
TEST(ProgressCheckTest, ABlockedWorkerIsNoneWhileOthersGetOn) {
  std::latch gate(1);
  std::latch open(0);
  WorkerPool pool(2);
  pool.Start();
  ProgressCheck check({pool}, milliseconds(1));
  pool.Submit(std::make_shared<GatedTask>(gate));
  Await(check, true);
  for (uint64_t round = 1; round <= 100; ++round) {
    pool.Submit(std::make_shared<GatedTask>(open));
    while (pool.progress() < round) std::this_thread::yield();
    ASSERT_EQ(check.Stuck(), "");
  }
  EXPECT_THAT(Await(check, true), ContainsRegex(", and nothing else was done for [0-9]+ s"));
  gate.count_down();
}

TEST(ProgressCheckTest, AHungReaderIsNamedAndAloneNotStuck) {
  std::latch gate(1);
  std::latch open(0);
  WorkerPool workers(1);
  WorkerPool readers(2, UINT32_MAX, PoolKind::kReaders);
  workers.Start();
  readers.Start();
  ProgressCheck check({.workers = workers, .readers = &readers}, milliseconds(1));
  for (int i = 0; i < 2; ++i) readers.Submit(std::make_shared<GatedTask>(gate));
  while (check.Hung({}).size() < 2) std::this_thread::yield();
  for (const HungThread& hung : check.Hung({})) {
    EXPECT_THAT(hung.thread, ContainsRegex("^reader[01]$"));
    EXPECT_EQ(hung.feed, 7U);
    EXPECT_EQ(hung.pool, PoolKind::kReaders);
  }
  Await(check, true);
  for (uint64_t round = 1; round <= 100; ++round) {
    workers.Submit(std::make_shared<GatedTask>(open));
    while (workers.progress() < round) std::this_thread::yield();
    ASSERT_EQ(check.Stuck(), "");
  }
  EXPECT_THAT(Await(check, true), ContainsRegex("a reader has been at one piece of work for [0-9]+ s.*; more "
                                                "readers that hang: 1, and nothing else was done"));
  gate.count_down();
  while (readers.progress() < 2) std::this_thread::yield();
  EXPECT_EQ(check.Stuck(), "");
}

TEST(ProgressCheckTest, AGpuThatEndsNoCopyIsNamed) {
  const WorkerPool pool(1);
  std::vector<GpuSnapshot> gpus = Gpus(milliseconds(1));
  ProgressCheck check({pool, [&] { return gpus; }}, milliseconds(1));
  EXPECT_EQ(check.Stuck(), "");
  gpus = Gpus(milliseconds(6001));
  EXPECT_THAT(
      Await(check, true),
      HasSubstr(
          "no copy of peer-1 to GPU-ill has ended for 6 s (stuck_timeout), and nothing else was done for"));
  const std::vector<HungThread> hung = check.Hung(gpus);
  ASSERT_EQ(hung.size(), 1U);
  EXPECT_EQ(hung[0].thread, "peer-1");
  EXPECT_EQ(hung[0].gpu, "GPU-ill");
  EXPECT_EQ(hung[0].age, milliseconds(6001));
  gpus[0].copied_bytes += 4096;
  EXPECT_EQ(check.Stuck(), "");
  gpus[0].peer_bytes += 4096;
  EXPECT_EQ(check.Stuck(), "");
  Await(check, true);
}

// What it logs while one operation hangs, ends, and another one goes on as it must.
TEST(ProgressCheckTest, AChoreThatHangsIsToldOfOnceAndWhenItGoesOn) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  const auto lines_with = [&log](const std::string& pattern) {
    size_t count = 0;
    std::istringstream all(log.str());
    for (std::string line; std::getline(all, line);)
      count += ::testing::Matches(::testing::ContainsRegex(pattern))(line) ? 1 : 0;
    return count;
  };
  const WorkerPool pool(1);
  const auto now = std::chrono::steady_clock::now();
  const OngoingOperation hung{"gpu-quarantine", "freeing 2 MiB of GPU-ill", now - std::chrono::hours(2)};
  std::vector<OngoingOperation> under_way = {hung, {"feed-reaper", "stopping feed 3", now}};
  ProgressCheck check({.workers = pool, .operations = [&] { return under_way; }}, milliseconds(0));
  EXPECT_EQ(check.interval(), milliseconds(5000)) << "also where nothing counts as stuck";
  for (int look = 0; look < 3; ++look) EXPECT_EQ(check.Stuck(), "") << "a watchdog is fed all the same";
  EXPECT_EQ(lines_with("freeing 2 MiB of GPU-ill has taken 72.. s so far"), 1U);
  under_way = {{hung.thread, hung.what, now - std::chrono::hours(1)}};  // the next one of that name
  EXPECT_EQ(check.Stuck(), "");
  EXPECT_EQ(lines_with("freeing 2 MiB of GPU-ill is no longer waited for, after 72.. s"), 1U);
  EXPECT_EQ(lines_with("freeing 2 MiB of GPU-ill has taken 36.. s so far"), 1U);
  under_way.clear();
  for (int look = 0; look < 3; ++look) EXPECT_EQ(check.Stuck(), "");
  EXPECT_EQ(lines_with("freeing 2 MiB of GPU-ill is no longer waited for, after 36.. s"), 1U);
  EXPECT_EQ(lines_with("GPU-ill"), 4U);
  EXPECT_EQ(lines_with("feed 3"), 0U);
  spdlog::set_default_logger(before);
}

// Storage may take as long as a worker's may, a driver takes milliseconds; and neither makes the daemon
// stuck.
TEST(ProgressCheckTest, ChoresThatHangAreNamed) {
  const WorkerPool pool(1);
  const auto ago = [](int seconds) {
    return std::chrono::steady_clock::now() - std::chrono::seconds(seconds);
  };
  const std::vector<OngoingOperation> operations = {
      {"dataset", "opening dataset '/a'", ago(3600), WaitsFor::kStorage},
      {"dataset", "opening dataset '/b'", ago(60), WaitsFor::kStorage},
      {"producer 7", "filling batch 1", ago(60), WaitsFor::kProcess},
      {"feed-reaper", "freeing feed 7", ago(60)},
      {"gpu-quarantine", "freeing 2 MiB", ago(1)}};
  ProgressCheck check({.workers = pool, .operations = [&] { return operations; }}, std::chrono::seconds(600));
  std::vector<HungThread> hung = check.Hung({});
  ASSERT_EQ(hung.size(), 2U);
  EXPECT_EQ(hung[0].thread, "dataset");
  EXPECT_EQ(hung[0].operation, "opening dataset '/a'");
  EXPECT_GE(hung[0].age, std::chrono::seconds(3600));
  EXPECT_EQ(hung[1].operation, "freeing feed 7");
  EXPECT_EQ(check.Stuck(), "");
  check.SetLimit(milliseconds(0));
  hung = check.Hung({});
  ASSERT_EQ(hung.size(), 1U);
  EXPECT_EQ(hung[0].thread, "feed-reaper");
}

TEST(ProgressCheckTest, ALimitOfZeroIsNone) {
  const WorkerPool pool(1);
  ProgressCheck check({pool, [] { return Gpus(std::chrono::hours(24)); }}, milliseconds(0));
  EXPECT_EQ(check.interval(), milliseconds::max());
  EXPECT_EQ(check.Stuck(), "");
  EXPECT_TRUE(check.Hung(Gpus(std::chrono::hours(24))).empty());
}

}  // namespace
}  // namespace pinfeed
