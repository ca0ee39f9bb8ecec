// SPDX-License-Identifier: Apache-2.0
#include "client/src/feed/feed_warnings.h"

#include <chrono>

#include "tests/support/log_capture.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using std::chrono::seconds;

TEST(FeedWarningsTest, AVeryLongWaitIsToldOnceInAWhile) {
  LogCapture log;
  FeedWarnings warnings;
  warnings.NoBatchComes(seconds(29), "/run/pinfeed.sock", 0);
  EXPECT_THAT(log.lines, IsEmpty());
  warnings.NoBatchComes(seconds(31), "/run/pinfeed.sock", 0);
  warnings.NoBatchComes(seconds(32), "/run/pinfeed.sock", 0);
  ASSERT_THAT(log.lines, SizeIs(1));
  EXPECT_THAT(log.lines[0], AllOf(HasSubstr("no batch for 31"), HasSubstr("/run/pinfeed.sock"),
                                  HasSubstr("pinfeed status"), HasSubstr("stopped or hangs")));
  // Another reason is told at once.
  warnings.MayHoldAll(seconds(33), 3, 3);
  ASSERT_THAT(log.lines, SizeIs(2));
  EXPECT_THAT(log.lines[1], HasSubstr("no batch for 33.00 s: all 3 slots are held"));
}

TEST(FeedWarningsTest, ARefusalToReconnectIsToldAndARestartIsNot) {
  LogCapture log;
  FeedWarnings warnings;
  warnings.NotReconnected(seconds(1), "/run/pinfeed.sock", Unavailable("connect: no such file"));
  EXPECT_THAT(log.lines, IsEmpty());
  warnings.NotReconnected(seconds(2), "/run/pinfeed.sock", ResourceExhausted("the pool is too small"));
  warnings.NotReconnected(seconds(3), "/run/pinfeed.sock", ResourceExhausted("the pool is too small"));
  ASSERT_THAT(log.lines, SizeIs(1));
  EXPECT_THAT(log.lines[0], AllOf(HasSubstr("after 2.00 s, trying on: the pool is too small"),
                                  HasSubstr("/run/pinfeed.sock")));
  FeedWarnings others;
  others.NotReconnected(seconds(31), "/run/pinfeed.sock", Unavailable("connect: no such file"));
  EXPECT_THAT(log.lines, SizeIs(2));
}

}  // namespace
}  // namespace pinfeed
