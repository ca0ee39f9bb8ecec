// SPDX-License-Identifier: Apache-2.0
// What programs may do with libpinfeed that is not meant, or hardly ever happens: each is refused with a
// reason, or works.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/client_daemon_fixture.h"

namespace pinfeed {
namespace {

using std::chrono::milliseconds;

class ClientMisuseTest : public ClientDaemonTest {
 protected:
  // One of two members, so that no batch comes until there is another.
  Feed OpenMember() const {
    return Feed(Spec(R"(, "sharing": "BROADCAST", "group": "pair", "group_size": 2)"), Options());
  }
};

template <typename Body>
pf_result CodeOf(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  return PF_OK;
}

TEST_F(ClientMisuseTest, TimeThatIsUpIsNoTime) {
  Feed feed = OpenMember();
  for (const int left : {0, -1, -2, -5})
    EXPECT_EQ(CodeOf([&] { feed.Next(milliseconds(left)); }), PF_DEADLINE_EXCEEDED) << left << " ms";
}

TEST_F(ClientMisuseTest, TwoThreadsTakeNoBatchesOfOneFeed) {
  Feed feed = OpenMember();
  std::atomic<bool> taken{false};
  std::thread waits([&] {
    // Refused while the other thread looks.
    while (CodeOf([&] { EXPECT_EQ(feed.Next()->index(), 0U); }) == PF_FAILED_PRECONDITION) {
    }
    taken = true;
  });
  pf_result second = PF_DEADLINE_EXCEEDED;
  while (second == PF_DEADLINE_EXCEEDED) second = CodeOf([&] { feed.Next(milliseconds(0)); });
  EXPECT_EQ(second, PF_FAILED_PRECONDITION);
  EXPECT_THAT(pf_last_error(), HasSubstr("use a feed in one thread at a time"));
  EXPECT_FALSE(taken);
  Feed other = OpenMember();
  waits.join();
  EXPECT_EQ(feed.Next()->index(), 1U);
}

TEST_F(ClientMisuseTest, TensorsAreFoundByAnyInteger) {
  Feed feed(Spec(), Options());
  std::optional<Batch> batch = feed.Next();
  EXPECT_STREQ((*batch)[size_t{1}].name(), "y");
  EXPECT_STREQ((*batch)[uint8_t{0}].name(), "x");
  enum Outputs { kX, kY };
  EXPECT_STREQ((*batch)[kY].name(), "y");
  const std::integral_constant<int, kX> first;
  EXPECT_STREQ((*batch)[first].name(), "x");
  EXPECT_EQ(CodeOf([&] { (*batch)[-1]; }), PF_INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf([&] { (*batch)[(uint64_t{1} << 32) + 1]; }), PF_INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf([&] { (*batch)["z"]; }), PF_INVALID_ARGUMENT);
  const int in_child = ExitStatusOfFork([&] { return CodeOf([&] { (*batch)["y"]; }); });
  EXPECT_EQ(in_child, PF_FAILED_PRECONDITION);
}

TEST_F(ClientMisuseTest, NamesOfClientsAreText) {
  FeedOptions options = Options();
  options.client_name = "caf\xe9";
  EXPECT_EQ(CodeOf([&] { const Feed feed(Spec(), options); }), PF_INVALID_ARGUMENT);
  EXPECT_THAT(pf_last_error(), AllOf(HasSubstr("client_name"), HasSubstr("is not UTF-8")));

  options.client_name.clear();
  for (const std::string& bad : {std::string("a\tb\xe9"), std::string(127, 'x') + "\xc3\xa9"}) {
    program_invocation_short_name = const_cast<char*>(bad.c_str());
    EXPECT_EQ(CodeOf([&] { const Feed feed(Spec(), options); }), PF_OK) << pf_last_error();
  }
  program_invocation_short_name = const_cast<char*>("client_misuse_test");
}

TEST_F(ClientMisuseTest, ARelativeAddressStaysThatOfItsDaemon) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir_.path());
  FeedOptions options = Options();
  options.address = "pinfeed.sock";
  Feed feed(Spec(), options);
  std::filesystem::current_path("/");
  feed.Next();
  feed.SeekEpoch(3);
  EXPECT_EQ(feed.Next()->epoch(), 3U);
  std::filesystem::current_path(before);
}

TEST_F(ClientMisuseTest, ValuesMayBeWrittenAsMessagesNameThem) {
  const Feed feed(Spec(R"(, "on_bad_sample": "skip", "order": "shuffle")"), Options());
  EXPECT_EQ(CodeOf([&] { const Feed wrong(Spec(R"(, "order": "random")"), Options()); }),
            PF_INVALID_ARGUMENT);
}

// The doorbell is closed as well, so that nothing tells the daemon of the release.
TEST_F(ClientMisuseTest, AMemberThatClosedAllItsDescriptorsGivesTheSlotsBackThatItReleases) {
  const std::string spec = Spec(R"(, "slots": 4, "sharing": "BROADCAST", "group": "pair", "group_size": 2)");
  std::array<int, 2> told{};
  std::array<int, 2> tells{};
  ASSERT_EQ(::pipe(told.data()) + ::pipe(tells.data()), 0);
  const pid_t orphan = ::fork();
  if (orphan == 0) {
    ::alarm(60);
    ::close(told[1]);  // so that the parent's end is seen
    Feed feed(spec, Options());
    std::vector<Batch> held;
    while (held.size() < 4) held.push_back(*feed.Next());
    for (int fd = 3; fd < 1024; ++fd)
      if (fd != told[0] && fd != tells[1]) ::close(fd);
    char byte = 0;
    (void)!::write(tells[1], &byte, 1);
    (void)!::read(told[0], &byte, 1);
    for (Batch& batch : held) batch.Release();
    (void)!::read(told[0], &byte, 1);
    ::_exit(0);
  }
  Feed feed(spec, Options());
  for (uint64_t index = 0; index < 4; ++index) EXPECT_EQ(feed.Next()->index(), index);
  char byte = 0;
  ASSERT_EQ(::read(tells[0], &byte, 1), 1);
  std::thread waits([&] {
    while (CodeOf([&] { EXPECT_EQ(feed.Next()->index(), 4U); }) == PF_FAILED_PRECONDITION) {
    }
  });
  while (CodeOf([&] { feed.Next(milliseconds(0)); }) != PF_FAILED_PRECONDITION) {
  }
  EXPECT_EQ(::write(told[1], &byte, 1), 1);
  waits.join();
  for (const int fd : {told[0], told[1], tells[0], tells[1]}) ::close(fd);
  int status = 0;
  EXPECT_EQ(::waitpid(orphan, &status, 0), orphan);
}

// Its destructor runs after that of the thread's last error, which was made later.
struct Late {
  ~Late() {
    char* json = nullptr;
    failed_alone = pf_status_json("/nowhere/pinfeed.sock", &json) == PF_UNAVAILABLE &&
                   std::string(pf_last_error()).find("/nowhere/pinfeed.sock") != std::string::npos;
  }
  static inline std::atomic<bool> failed_alone = false;
};

TEST_F(ClientMisuseTest, DestructorsAtAThreadsEndMayCallTheLibrary) {
  std::thread([] {
    thread_local const Late late;
    EXPECT_NE(&late, nullptr);
    char* json = nullptr;
    EXPECT_EQ(pf_status_json("/elsewhere/pinfeed.sock", &json), PF_UNAVAILABLE);
    EXPECT_THAT(pf_last_error(), HasSubstr("/elsewhere"));
  }).join();
  EXPECT_TRUE(Late::failed_alone);
}

}  // namespace
}  // namespace pinfeed
