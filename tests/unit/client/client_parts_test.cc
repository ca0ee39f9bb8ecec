// SPDX-License-Identifier: Apache-2.0
// The client's parts that need no daemon: addresses, JSON, back-off, connection errors, structs that grow.
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "client/src/base/backoff.h"
#include "client/src/base/client_log.h"
#include "client/src/base/fork_guard.h"
#include "client/src/base/unix_socket.h"
#include "client/src/link/address.h"
#include "client/src/link/daemon.h"
#include "common/base/quote.h"
#include "pinfeed/pinfeed.h"
#include "tests/support/log_capture.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

SteadyTime Soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

TEST(ClientAddressTest, ArgumentGoesBeforeEnvironmentBeforeDefault) {
  const ScopedEnv environment("PINFEED_ADDRESS", "/env.sock");
  EXPECT_EQ(*ResolveAddress("/given.sock"), "/given.sock");
  EXPECT_EQ(*ResolveAddress("unix:/given.sock"), "/given.sock");
  EXPECT_EQ(*ResolveAddress(nullptr), "/env.sock");
  EXPECT_EQ(*ResolveAddress(""), "/env.sock");
  const ScopedEnv unset("PINFEED_ADDRESS", nullptr);
  EXPECT_EQ(*ResolveAddress(nullptr), kDefaultAddress);
}

TEST(ClientAddressTest, PathThatFitsNoSocketSaysWhereItCameFrom) {
  EXPECT_TRUE(ResolveAddress(("/" + std::string(106, 'x')).c_str()).ok());
  EXPECT_THAT(ResolveAddress(("/" + std::string(107, 'x')).c_str()),
              StatusIs(Code::kInvalidArgument, HasSubstr("at most 107")));
  EXPECT_THAT(ResolveAddress("unix:"), StatusIs(Code::kInvalidArgument, HasSubstr("names no socket")));
  const ScopedEnv environment("PINFEED_ADDRESS", ("/" + std::string(200, 'x')).c_str());
  EXPECT_THAT(ResolveAddress(nullptr), StatusIs(Code::kInvalidArgument, HasSubstr("$PINFEED_ADDRESS")));
}

TEST(ClientAddressTest, TcpIsToldFromPaths) {
  for (const char* tcp : {"node7:9468", "10.0.0.7:1", "[::1]:9468"}) {
    EXPECT_EQ(*ResolveAddress(tcp), tcp);
    EXPECT_THAT(ResolveLocalAddress(tcp, "trace"),
                StatusIs(Code::kInvalidArgument, HasSubstr("trace: not over TCP")));
  }
  EXPECT_EQ(*ResolveAddress("unix:node7:9468"), "./node7:9468");
  for (const char* path : {"/a:1", "./a:1", "node7", "node7:", "node7:http", ":9468", "a:65536"})
    EXPECT_EQ(*ResolveLocalAddress(path, "trace"), std::filesystem::absolute(path));
  const std::string fits_alone(100, 'x');
  EXPECT_EQ(*ResolveLocalAddress(fits_alone.c_str(), "trace"), fits_alone);
}

TEST(ClientConnectTest, ErrorsSayWhatToDo) {
  const TempDir dir;
  EXPECT_THAT(StatusJson((dir / "none.sock").string(), Soon()),
              StatusIs(Code::kUnavailable,
                       HasSubstr("is the daemon running? Start pinfeedd, or name its socket by address=")));
  EXPECT_THAT(StatusJson(dir.Write("file", "x").string(), Soon()),
              StatusIs(Code::kUnavailable, HasSubstr("is the daemon running?")));
}

TEST(ClientConnectTest, SpareDescriptorsAreAskedForBeforeTheCall) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<UniqueFd> held;
  rlimit few = before;
  few.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  while (held.empty() || held.back()) held.emplace_back(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd gone = std::move(held.front());
  EXPECT_THAT(CheckSpareDescriptors(gone.get()),
              StatusIs(Code::kResourceExhausted, HasSubstr("at its limit of open files (64); raise it")));
  EXPECT_THAT(ConnectUnix("/none.sock", SOCK_STREAM, Soon()),
              StatusIs(Code::kResourceExhausted, HasSubstr("at its limit of open files (64); raise it")));
  held.resize(held.size() - 18);
  EXPECT_TRUE(CheckSpareDescriptors(gone.get()).ok());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(ClientConnectTest, DirectoryIsToldFromASocket) {
  const TempDir dir;
  EXPECT_THAT(StatusJson(dir.path().string(), Soon()),
              StatusIs(Code::kInvalidArgument, HasSubstr((dir / "pinfeed.sock").string())));
}

TEST(ClientCursorTest, SurvivesTheWayThroughJson) {
  Cursor cursor{"00000000000f00d0", ~uint64_t{0}, 3, uint64_t{1} << 63, Order::kSequential};
  EXPECT_EQ(*CursorFromJson(CursorToJson(cursor)), cursor);
  cursor.version = 1;  // an older daemon's goes back to it as it came
  EXPECT_EQ(*CursorFromJson(CursorToJson(cursor)), cursor);
}

TEST(ClientCursorTest, OtherJsonIsRefused) {
  EXPECT_THAT(CursorFromJson("{"), StatusIs(Code::kInvalidArgument, HasSubstr("cursor")));
  EXPECT_THAT(CursorFromJson(R"({"version": 1, "place": 3})"),
              StatusIs(Code::kInvalidArgument, HasSubstr("place")));
  EXPECT_THAT(CursorFromJson(R"({"version": 3})"), StatusIs(Code::kInvalidArgument, HasSubstr("version")));
}

TEST(ClientSpecTest, UnknownFieldsAreNamed) {
  const TempDir dir;
  const std::string address = (dir / "none.sock").string();
  bool stopping = false;
  EXPECT_THAT(
      OpenFeed(address, {R"({"batchsize": 4})", {}, "t"}, Soon(), &stopping),
      StatusIs(Code::kInvalidArgument,
               AllOf(HasSubstr("batchsize"), HasSubstr("docs/transforms.md describes the transforms"))));
  EXPECT_THAT(OpenFeed(address, {"not json", {}, "t"}, Soon(), &stopping),
              StatusIs(Code::kInvalidArgument, HasSubstr("spec must be a JSON object")));
  EXPECT_THAT(OpenFeed(address, {"[]", {}, "t"}, Soon(), &stopping),
              StatusIs(Code::kInvalidArgument, HasSubstr("spec must be a JSON object")));
}

TEST(ClientSpecTest, MessagesHoldWholeCharacters) {
  // protobuf quotes 20 bytes or so around the fault; with each shift, it cuts elsewhere.
  bool stopping = false;
  for (size_t shift = 0; shift < 4; ++shift) {
    std::string accents(shift, 'x');
    for (int i = 0; i < 40; ++i) accents += "\u00e9\u4e2d";
    const Status status =
        OpenFeed("/none.sock", {"{\"a" + accents + "\": 1 " + accents + "}", {}, "t"}, Soon(), &stopping)
            .status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(IsUtf8(status.message())) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("\u00e9\u4e2d"));
  }
}

// The exit status of a child that tries to call.
enum ChildMay { kCall = 10, kNotCall = 11, kElse = 12 };
int ForkAndTry() {
  return ExitStatusOfFork([] {
    const Code code = NoForkScope::Enter(Soon()).status().code();
    return code == Code::kOk ? kCall : code == Code::kFailedPrecondition ? kNotCall : kElse;
  });
}

TEST(ClientForkTest, ForkWaitsForTheEndOfACall) {
  std::latch calling(1);
  std::atomic<bool> ended{false};
  std::thread call([&] {
    const auto scope = NoForkScope::Enter(Soon());
    calling.count_down();
    // A fork that waits goes before new calls: one that finds no place shows that the fork has come.
    for (bool fork_waits = false; !fork_waits;)
      fork_waits = !NoForkScope::Enter(std::chrono::steady_clock::now() + std::chrono::milliseconds(1)).ok();
    ended = true;
  });
  calling.wait();
  EXPECT_EQ(ForkAndTry(), kCall);
  EXPECT_TRUE(ended);
  call.join();
  EXPECT_TRUE(NoForkScope::Enter(Soon()).ok());
}

TEST(ClientForkTest, ForkAmidALongCallGoesOnAndItsChildIsRefused) {
  std::latch calling(1);
  std::latch forked(1);
  std::thread call([&] {
    const auto scope = NoForkScope::Enter(Soon());
    calling.count_down();
    forked.wait();
  });
  calling.wait();
  EXPECT_EQ(ForkAndTry(), kNotCall);
  EXPECT_TRUE(NoForkScope::Enter(Soon()).ok()) << "the parent may";
  forked.count_down();
  call.join();
  EXPECT_EQ(ForkAndTry(), kCall);
}

TEST(ClientLogTest, WhatTheLibrarysThreadsSayIsDeliveredOnTheProgramsThreads) {
  const LogCapture log;
  std::thread([] {
    const LibraryThread library_thread;
    ClientLog(PF_LOG_WARNING, "first");
    ClientLog(PF_LOG_WARNING, "second");
  }).join();
  EXPECT_THAT(log.lines, SizeIs(0));
  EXPECT_EQ(pf_next(nullptr, 0, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_THAT(log.lines, ElementsAre("first", "second"));
  PassOnLog();
  EXPECT_THAT(log.lines, SizeIs(2));
}

TEST(ClientBackoffTest, DoublesUpToItsLimitWithinTheUpperHalf) {
  Backoff backoff;
  std::chrono::nanoseconds pause = Backoff::kFirst;
  for (int i = 0; i < 12; ++i) {
    const auto drawn = backoff.Next();
    EXPECT_GE(drawn, pause / 2);
    EXPECT_LE(drawn, pause);
    pause = std::min<std::chrono::nanoseconds>(pause * 2, Backoff::kMax);
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), Backoff::kFirst);
}

TEST(ClientCApiTest, InitTouchesNothingBehindTheCallersStruct) {
  struct {
    pf_open_options options;
    char behind[8];
  } memory;
  std::memset(static_cast<void*>(&memory), 0x5a, sizeof(memory));
  pf_open_options_init(
      &memory.options,
      offsetof(pf_open_options, reconnect_timeout_ms));  // an older caller's, one field shorter
  EXPECT_EQ(memory.options.size, offsetof(pf_open_options, reconnect_timeout_ms));
  EXPECT_EQ(memory.options.open_timeout_ms, 10'000);
  EXPECT_EQ(memory.options.reconnect_timeout_ms, 0x5a5a5a5a5a5a5a5a);
  pf_open_options_init(&memory.options,
                       sizeof(memory));  // a newer caller's, with fields this library does not know
  EXPECT_EQ(memory.options.reconnect_timeout_ms, 300'000);
  EXPECT_EQ(memory.behind[7], 0);
}

TEST(ClientCApiTest, AStructThatEndsAmidAPointerIsRefused) {
  pf_feed* feed = nullptr;
  pf_open_options options;
  pf_open_options_init(&options, sizeof(options));
  options.spec_json = "{}";
  options.size = offsetof(pf_open_options, spec_json) + 4;
  EXPECT_EQ(pf_open(&options, &feed), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr("which no version of the struct has"));
}

TEST(ClientCApiTest, BadArgumentsAreErrors) {
  pf_feed* feed = nullptr;
  pf_open_options options;
  std::memset(static_cast<void*>(&options), 0, sizeof(options));
  EXPECT_EQ(pf_open(&options, &feed), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr("pf_open_options_init"));
  EXPECT_EQ(pf_open(nullptr, &feed), PF_INVALID_ARGUMENT);
  pf_open_options_init(&options, sizeof(options));
  EXPECT_EQ(pf_open(&options, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_open(&options, &feed), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), HasSubstr("spec_json is NULL"));
  options.spec_json = "{}";
  options.open_timeout_ms = 0;
  EXPECT_EQ(pf_open(&options, &feed), PF_INVALID_ARGUMENT);
  options.open_timeout_ms = 1;
  options.reconnect_timeout_ms = -2;
  EXPECT_EQ(pf_open(&options, &feed), PF_INVALID_ARGUMENT);

  pf_batch* batch = nullptr;
  EXPECT_EQ(pf_next(nullptr, 0, &batch), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_next(nullptr, 0, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_get_tensor(nullptr, 0, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_get_batch_info(nullptr, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_get_feed_info(nullptr, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_cursor(nullptr, nullptr, 0, nullptr), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_seek(nullptr, "{}"), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_seek_epoch(nullptr, 0), PF_INVALID_ARGUMENT);
  EXPECT_EQ(pf_status_json(nullptr, nullptr), PF_INVALID_ARGUMENT);
  pf_close(nullptr);
  pf_batch_release(nullptr);
  pf_batch_retain(nullptr);
  pf_free(nullptr);
}

TEST(ClientCApiTest, NamesOfResults) {
  EXPECT_STREQ(pf_result_name(PF_OK), "OK");
  EXPECT_STREQ(pf_result_name(PF_UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_STREQ(pf_result_name(static_cast<pf_result>(99)), "UNKNOWN");
  EXPECT_EQ(pf_version(), static_cast<uint32_t>(PF_VERSION));
}

}  // namespace
}  // namespace pinfeed
