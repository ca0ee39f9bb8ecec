// SPDX-License-Identifier: Apache-2.0
// What is refused, and what is meant for another process. Real sockets are passed by
// tests/python/service_test.py.
#include "server/daemon/service_environment.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using std::chrono::microseconds;

class ServiceEnvironmentTest : public ::testing::Test {
 protected:
  ~ServiceEnvironmentTest() override {
    for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC"})
      ::unsetenv(name);
  }
  static void Set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
  static void PassSockets(const std::string& count, const std::string& names) {
    Set("LISTEN_PID", std::to_string(::getpid()));
    Set("LISTEN_FDS", count);
    Set("LISTEN_FDNAMES", names);
  }
};

TEST_F(ServiceEnvironmentTest, NothingIsPassedWithoutServiceManager) {
  const auto sockets = TakePassedSockets();
  ASSERT_TRUE(sockets.ok()) << sockets.status().message();
  EXPECT_TRUE(sockets->empty());
  EXPECT_EQ(WatchdogInterval(), microseconds(0));
}

TEST_F(ServiceEnvironmentTest, SocketsOfAnotherProcessAreLeft) {
  PassSockets("2", "control:lifeline");
  Set("LISTEN_PID", std::to_string(::getppid()));
  const auto sockets = TakePassedSockets();
  ASSERT_TRUE(sockets.ok()) << sockets.status().message();
  EXPECT_TRUE(sockets->empty());
}

TEST_F(ServiceEnvironmentTest, ChildrenInheritNoVariables) {
  PassSockets("0", "");
  ASSERT_TRUE(TakePassedSockets().ok());
  for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"})
    EXPECT_EQ(std::getenv(name), nullptr) << name;
}

TEST_F(ServiceEnvironmentTest, FaultyCountsAreRefused) {
  for (const char* count : {"", "two", "-1", "1 ", "2147483646", "99999999999999999999"}) {
    PassSockets(count, "control");
    EXPECT_THAT(TakePassedSockets(), StatusIs(Code::kInvalidArgument, HasSubstr("$LISTEN_FDS"))) << count;
  }
}

TEST_F(ServiceEnvironmentTest, NamesForAnotherCountAreRefused) {
  for (const char* names : {"", "control", "control:lifeline:"}) {
    PassSockets("2", names);
    EXPECT_THAT(TakePassedSockets(), StatusIs(Code::kInvalidArgument, HasSubstr("$LISTEN_FDNAMES"))) << names;
  }
}

TEST_F(ServiceEnvironmentTest, WatchdogOfThisProcessIsRead) {
  Set("WATCHDOG_USEC", "600000");
  EXPECT_EQ(WatchdogInterval(), microseconds(600'000));
  Set("WATCHDOG_PID", std::to_string(::getpid()));
  EXPECT_EQ(WatchdogInterval(), microseconds(600'000));
  Set("WATCHDOG_PID", std::to_string(::getppid()));
  EXPECT_EQ(WatchdogInterval(), microseconds(0));
}

TEST_F(ServiceEnvironmentTest, FaultyWatchdogIsNone) {
  for (const char* interval : {"", "-5", "soon", "99999999999999999999"}) {
    Set("WATCHDOG_USEC", interval);
    EXPECT_EQ(WatchdogInterval(), microseconds(0)) << interval;
  }
}

TEST_F(ServiceEnvironmentTest, CacheDirectoryIsTheServiceManagersOrTheUsers) {
  const ScopedEnv home("HOME", "/home/a");
  const ScopedEnv cache("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(CacheDirectory(), "/home/a/.cache/pinfeed");
  Set("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(CacheDirectory(), "/home/a/.cache/pinfeed");
  Set("XDG_CACHE_HOME", "/caches");
  EXPECT_EQ(CacheDirectory(), "/caches/pinfeed");
  const ScopedEnv service("CACHE_DIRECTORY", "/var/cache/pinfeed:/var/cache/other");
  EXPECT_EQ(CacheDirectory(), "/var/cache/pinfeed");
}

}  // namespace
}  // namespace pinfeed
