// SPDX-License-Identifier: Apache-2.0
#include "client/cli/top_screen.h"

#include <algorithm>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

// As protobuf prints it: 64-bit integers are strings.
Json Session(int id, const std::string& name, uint64_t taken, double read, double consumer) {
  return {{"id", std::to_string(id)},
          {"pid", 4000 + id},
          {"client_name", name},
          {"state", "attached"},
          {"batches_taken", std::to_string(taken)},
          {"slots_ready", 3},
          {"slots_held", 1},
          {"stall_seconds", {{"read", read}, {"consumer", consumer}}}};
}

Json Status(uint64_t samples, const std::vector<Json>& sessions) {
  return {
      {"version", "1.2.3"},
      {"state", "ready"},
      {"uptime_seconds", 61.5},
      {"pid", 77},
      {"workers", 4},
      {"workers_busy", 1},
      {"pool_capacity_bytes", "1073741824"},
      {"pool_used_bytes", "536870912"},
      {"feeds",
       {{{"id", "3"}, {"samples", std::to_string(samples)}, {"batch_bytes", "0"}, {"sessions", sessions}}}}};
}

TEST(TopScreenTest, ShowsWhatHappenedBetweenTwoLooks) {
  const Json before = Status(1000, {Session(1, "fast.py", 100, 5, 10), Session(2, "slow.py", 100, 1, 0)});
  const Json now = Status(3000, {Session(1, "fast.py", 140, 5, 11.5), Session(2, "slow.py", 104, 2, 0)});
  const std::vector<std::string> lines = TopScreen(before, now, 2, 80, 24);
  EXPECT_EQ(lines[0], "pinfeedd 1.2.3 is ready, up 1 min 1 s, pid 77. q quits");
  EXPECT_EQ(lines[1], "pool     [##########..........]  50%  512 MiB of 1 GiB");
  EXPECT_EQ(lines[2], "workers  [#####...............]  25%  1 of 4 busy");
  EXPECT_THAT(lines[3], StartsWith("1 feed, 2 sessions, 1,000 samples/s, "));
  // The one that waits most comes first.
  EXPECT_EQ(lines[6], "      2     3     4002  slow.py               2.0    3/1   50%  read 50%");
  EXPECT_EQ(lines[7], "      1     3     4001  fast.py              20.0    3/1    0%  trainer 75%");
}

TEST(TopScreenTest, ANarrowTerminalShowsWhatIsWaitedFor) {
  const Json before = Status(1000, {Session(2, "slow.py", 100, 1, 0)});
  const Json now = Status(3000, {Session(2, "slow.py", 104, 2, 0)});
  const std::vector<std::string> lines = TopScreen(before, now, 2, 60, 24);
  EXPECT_EQ(lines[5], "SESSION  FEED  CLIENT          RDY/HLD  WAIT  BOUND ON");
  EXPECT_EQ(lines[6], "      2     3  slow.py             3/1   50%  read 50%");
}

TEST(TopScreenTest, WaitingForAnotherOfTheGroupIsWaiting) {
  Json before = Session(1, "fast.py", 100, 5, 10);
  Json now = before;
  before["stall_seconds"]["group"] = 2;
  now["stall_seconds"]["group"] = 3.8;
  const std::vector<std::string> lines = TopScreen(Status(1, {before}), Status(1, {now}), 2, 80, 24);
  EXPECT_THAT(lines[6], HasSubstr(" 90%  its group 90%"));
}

TEST(TopScreenTest, WaitingShowsBeforeItsCauseIsKnown) {
  Json before = Session(1, "slow.py", 100, 5, 10);
  Json now = before;
  before["wait_seconds"] = 3;
  now["wait_seconds"] = 5;
  now["recent"] = {{"read", 0.8}};
  const std::vector<std::string> lines = TopScreen(Status(1, {before}), Status(1, {now}), 2, 80, 24);
  EXPECT_THAT(lines[6], HasSubstr("100%  read 80%"));
  now["recent"] = {{"consumer", 0.8}};  // it was slow before
  EXPECT_THAT(TopScreen(Status(1, {before}), Status(1, {now}), 2, 80, 24)[6], HasSubstr("100%  -"));
  Json waiting = Status(1, {now});
  waiting["feeds"][0]["state"] = "waiting";
  EXPECT_THAT(TopScreen(Status(1, {before}), waiting, 2, 80, 24)[6], HasSubstr("100%  its group"));
}

TEST(TopScreenTest, FitsAnyTerminalAndSaysWhatIsLeftOut) {
  std::vector<Json> sessions;
  for (int i = 1; i <= 40; ++i)
    sessions.push_back(Session(i, std::string(300, 'n') + "\x1b[2J\xc3\xa4", 1, 0, 0));
  const Json now = Status(1, sessions);
  for (const size_t height : {1, 2, 5, 7, 8, 24, 100}) {
    for (const size_t width : {1, 10, 80, 300}) {
      const std::vector<std::string> lines = TopScreen(Json(), now, 0, width, height);
      EXPECT_LE(lines.size(), height);
      for (const std::string& line : lines) {
        EXPECT_LE(line.size(), width);
        EXPECT_TRUE(std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; })) << line;
      }
    }
  }
  EXPECT_THAT(TopScreen(Json(), now, 0, 80, 24), Contains(HasSubstr("... and 23 more sessions")));
  EXPECT_EQ(TopScreen(Json(), now, 0, 80, 24).size(), 24U);
}

TEST(TopScreenTest, FeedsOfOneNameAreToldApartByTheEndOfTheirPaths) {
  Json now = Status(1, {Session(1, "a", 5, 9, 9)});
  now["feeds"].push_back(now["feeds"][0]);
  now["feeds"][0]["dataset"] = "/data/imagenet/train";
  now["feeds"][1]["dataset"] = "/data/cifar/train";
  const std::vector<std::string> lines = TopScreen(Json(), now, 0, 120, 24);
  EXPECT_EQ(lines[5],
            "SESSION  FEED      PID  CLIENT            BATCH/s  RDY/HLD WAIT  BOUND ON        DATASET");
  EXPECT_EQ(lines[6],
            "      1     3     4001  a                       -    3/1     -  -               imagenet/train");
  EXPECT_EQ(lines[7],
            "      1     3     4001  a                       -    3/1     -  -               cifar/train");
}

TEST(TopScreenTest, TheFirstLookHasNoRates) {
  const std::vector<std::string> lines =
      TopScreen(Json(), Status(1000, {Session(1, "a", 5, 9, 9)}), 0, 80, 24);
  EXPECT_EQ(lines[3], "1 feed, 1 session, measuring ...");
  EXPECT_EQ(lines[6], "      1     3     4001  a                       -    3/1     -  -");
}

}  // namespace
}  // namespace pinfeed
