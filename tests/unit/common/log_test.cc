// SPDX-License-Identifier: Apache-2.0
// What is in log lines beside their text, and how many there are.
#include "common/base/log.h"

#include <thread>

#include "common/base/log_context.h"
#include "common/base/log_pace.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";

TEST(LogContextTest, ScopesNestAndBelongToTheirThread) {
  EXPECT_EQ(LogContextJson(CurrentLogContext()), "");
  {
    const LogScope outer({.session = 0, .feed = 2, .trace_id = kTrace});
    {
      const LogScope inner({.session = 3, .feed = 0, .trace_id = ""});
      EXPECT_EQ(LogContextJson(CurrentLogContext()),
                std::string(",\"session\":3,\"feed\":2,\"trace_id\":\"") + kTrace + "\"");
      std::thread([] { EXPECT_EQ(LogContextJson(CurrentLogContext()), ""); }).join();
    }
    EXPECT_EQ(CurrentLogContext().session, 0U);
  }
  EXPECT_EQ(LogContextJson(CurrentLogContext()), "");
}

TEST(LogContextTest, LinesOfJsonCarryIt) {
  ::testing::internal::CaptureStderr();
  ASSERT_OK(InitLogging("info", LogFormat::kJson));
  {
    const LogScope scope({.session = 3, .feed = 2, .trace_id = kTrace});
    spdlog::info("with \"quotes\" and \x1b\xff");
  }
  spdlog::info("without");
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr(std::string(",\"session\":3,\"feed\":2,\"trace_id\":\"") + kTrace +
                               "\",\"message\":\"with \\\"quotes\\\" and \\u001b\\ufffd\"}\n"));
  EXPECT_THAT(lines, ::testing::ContainsRegex("\"thread\":[0-9]+,\"message\":\"without\"}\n"));
}

TEST(LogContextTest, TraceparentIsCheckedAsTheStandardSays) {
  const std::string good = std::string("00-") + kTrace + "-b7ad6b7169203331-01";
  EXPECT_EQ(TraceIdOf(good), kTrace);
  EXPECT_EQ(TraceIdOf("cc" + good.substr(2)), kTrace);
  EXPECT_EQ(TraceIdOf("cc" + good.substr(2) + "-what-comes"), kTrace);
  for (const std::string& wrong :
       {std::string(), good.substr(0, 54), good + "-", good + "x", "cc" + good.substr(2) + "x",
        "ff" + good.substr(2), "0G" + good.substr(2), "00-" + std::string(32, '0') + good.substr(35),
        good.substr(0, 36) + std::string(16, '0') + "-01",
        std::string("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"), good.substr(0, 53) + "\n1",
        std::string("00_") + good.substr(3), std::string(1000, '-')}) {
    EXPECT_EQ(TraceIdOf(wrong), std::nullopt) << wrong;
  }
}

TEST(LogPaceTest, LeavesOutWhatIsTooMuchAndSaysHowMuch) {
  LogPace pace(2);
  const LogPace::Clock::time_point start{std::chrono::hours(1)};
  EXPECT_EQ(pace.Admit(start), "");
  EXPECT_EQ(pace.Admit(start), "");
  EXPECT_EQ(pace.Admit(start), std::nullopt);
  EXPECT_EQ(pace.Admit(start + std::chrono::milliseconds(999)), std::nullopt);
  EXPECT_EQ(pace.Admit(start + std::chrono::seconds(1)), " (and 2 such lines were dropped)");
  EXPECT_EQ(pace.Admit(start + std::chrono::seconds(1)), "");
}

}  // namespace
}  // namespace pinfeed
