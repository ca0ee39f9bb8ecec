// SPDX-License-Identifier: Apache-2.0
#include "client/cli/hung_line.h"

#include "client/cli/top_screen.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

const Json kWorker = {{"thread", "worker3"},
                      {"seconds", 130.0},
                      {"feed_id", "7"},
                      {"sample_id", "12"},
                      {"sample", "/data/cat\n.jpg"}};
const Json kChore = {
    {"thread", "dataset"}, {"seconds", 125.0}, {"feed_id", "0"}, {"operation", "opening dataset '/a'"}};
const Json kCopy = {{"thread", "copy-0"}, {"seconds", 121.0}, {"gpu", "GPU-1"}};

TEST(HungLineTest, NothingIsSaidOfADaemonWhoseThreadsGetOn) {
  EXPECT_EQ(HungLine(Json::object()), "");  // of an older daemon, too
  EXPECT_EQ(HungLine({{"hung", Json::array()}}), "");
}

TEST(HungLineTest, TheThreadThatHasHungForLongestIsNamedWithWhatItIsAt) {
  EXPECT_EQ(
      HungLine({{"hung", {kWorker}}}),
      "worker3 hangs: at sample 12 of feed 7 (/data/cat\\n.jpg) for 2 min 10 s; does its storage answer?");
  EXPECT_EQ(HungLine({{"hung", {kCopy}}}),
            "copy-0 hangs: none of its copies to GPU-1 has ended for 2 min 1 s");
  EXPECT_EQ(HungLine({{"hung", {kChore}}}), "dataset hangs: opening dataset '/a' for 2 min 5 s");
  const Json both = {{"hung", {kCopy, kWorker}}};
  EXPECT_THAT(HungLine(both), StartsWith("worker3 hangs"));
  EXPECT_THAT(HungLine(both), EndsWith(" Also hanging: 1 more thread."));
}

TEST(HungLineTest, TopHasItBelowTheState) {
  const std::vector<std::string> lines =
      TopScreen(Json(), {{"state", "ready"}, {"hung", {kCopy}}}, 0, 120, 24);
  EXPECT_THAT(lines.at(0), HasSubstr("is ready"));
  EXPECT_EQ(lines.at(1), HungLine({{"hung", {kCopy}}}));
}

}  // namespace
}  // namespace pinfeed
