// SPDX-License-Identifier: Apache-2.0
// How pinfeedd starts, refuses to start, and ends.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <thread>

#include "tests/support/daemon_fixture.h"

namespace pinfeed {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitConfig = 2;  // starting again does not help

// Starts a daemon that must refuse; its log is to name `reason`.
void ExpectRefusal(std::vector<std::string> arguments, int code, const std::string& reason) {
  DaemonProcess daemon(std::move(arguments));
  EXPECT_FALSE(daemon.AwaitReady());
  EXPECT_EQ(daemon.AwaitExit(), code);
  EXPECT_THAT(daemon.Log(), HasSubstr(reason));
}

TEST(DaemonStartTest, RefusesAMissingDirectory) {
  ExpectRefusal({"--socket-dir=/nonexistent/pinfeed"}, kExitConfig,
                "create it, or choose another with --socket-dir");
}

TEST(DaemonStartTest, RefusesADirectoryThatEveryoneMayWriteTo) {
  TempDir directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  ExpectRefusal({"--socket-dir=" + directory.path().string()}, kExitConfig, "could replace the sockets");
}

TEST(DaemonStartTest, RefusesADirectoryOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  TempDir directory;
  ASSERT_EQ(::chown(directory.path().c_str(), 12345, 0), 0);
  ExpectRefusal(
      {"--socket-dir=" + directory.path().string()}, kExitConfig,
      "it belongs to user 12345, who could replace the sockets, and this daemon is user 0; run it as "
      "that user (setpriv --reuid=12345 --regid=");
}

TEST(DaemonStartTest, WritesThroughNoLinkInItsDirectory) {
  TempDir directory;
  const std::string victim = directory.Write("victim", "precious").string();
  const std::filesystem::path port = directory / "http.port";
  std::filesystem::create_symlink(victim, port);
  DaemonProcess daemon({"--socket-dir=" + directory.path().string(), "--http-listen=127.0.0.1:0"});
  ASSERT_TRUE(daemon.AwaitReady()) << daemon.Log();
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(port)));
  std::string text;
  std::getline(std::ifstream(victim), text);
  EXPECT_EQ(text, "precious");
}

TEST(DaemonStartTest, RefusesAPathTooLongForASocket) {
  TempDir directory;
  const std::filesystem::path deep = directory / std::string(120, 'd');
  std::filesystem::create_directory(deep);
  ExpectRefusal({"--socket-dir=" + deep.string()}, kExitConfig, "choose a shorter socket_dir");
}

TEST(DaemonStartTest, RefusesAPoolLargerThanTheMemory) {
  ExpectRefusal({"--pool-bytes=900TiB"}, kExitConfig, "900 TiB (989560464998400 bytes) are more than the");
}

TEST(DaemonStartTest, ListsEveryFaultOfTheConfiguration) {
  TempDir directory;
  const std::string file = directory.Write("c.toml", "workers = \"many\"\nsockets = 3\n").string();
  DaemonProcess daemon({"--config=" + file, "--log-format=xml"});
  EXPECT_EQ(daemon.AwaitExit(), kExitConfig);
  EXPECT_THAT(daemon.Log(), HasSubstr(file + ":1: workers: expected an integer"));
  EXPECT_THAT(daemon.Log(), HasSubstr(file + ":2: sockets: unknown key"));
  EXPECT_THAT(daemon.Log(), HasSubstr("--log-format: log_format: expected text or json"));
}

TEST(DaemonStartTest, CheckOpensTheRootsAndTheNamedDatasets) {
  TempDir directory;
  directory.Write("tokens.bin", std::string(200, '\1'));
  const std::string path = directory.path().string();
  const std::string good =
      directory
          .Write("good.toml", "allowed_roots = [\"" + path + "\"]\n[datasets.text]\npath = \"" + path +
                                  "/tokens.bin\"\nsequence_length = 8\n")
          .string();
  DaemonProcess checked({"--config=" + good, "--check"});
  EXPECT_EQ(checked.AwaitExit(), 0) << checked.Log();
  const std::string bad =
      directory
          .Write("bad.toml",
                 "allowed_roots = [\"/nonexistent/root\"]\nsocket_group = \"no-such-group\"\n"
                 "[datasets.gone]\npath = \"/nonexistent/train\"\n"
                 "[datasets.text]\npath = \"" +
                     path + "/tokens.bin\"\nformat = \"image_folder\"\n")
          .string();
  DaemonProcess refused({"--config=" + bad, "--check"});
  EXPECT_EQ(refused.AwaitExit(), kExitConfig);
  EXPECT_THAT(
      refused.Log(),
      AllOf(HasSubstr(bad + ":1: allowed_roots: open the directory '/nonexistent/root': No such file"),
            HasSubstr(bad + ":2: socket_group: there is no group 'no-such-group'"),
            HasSubstr(bad + ":3: datasets.gone: "), HasSubstr("/nonexistent"),
            HasSubstr(bad + ":5: datasets.text: image folder '" + path + "/tokens.bin' is a file")));
}

TEST(DaemonStartTest, RefusesADirectoryThatIsServedAndNamesTheHolder) {
  DaemonProcess first;
  ASSERT_TRUE(first.AwaitReady()) << first.Log();
  ExpectRefusal({"--socket-dir=" + first.socket_dir().string()}, kExitFailed,
                "pid " + std::to_string(first.pid()) + " serves it already");
}

TEST(DaemonStartTest, StartsAgainAfterBeingKilled) {
  DaemonProcess first;
  ASSERT_TRUE(first.AwaitReady()) << first.Log();
  first.Signal(SIGKILL);
  EXPECT_EQ(first.AwaitExit(), 128 + SIGKILL);
  EXPECT_TRUE(std::filesystem::exists(first.rpc_path()));  // the stale sockets
  DaemonProcess second({"--socket-dir=" + first.socket_dir().string()});
  EXPECT_TRUE(second.AwaitReady()) << second.Log();
}

TEST(DaemonStartTest, RefusesADirectoryThatIsServedThoughItsLockWasRemoved) {
  DaemonProcess first;
  ASSERT_TRUE(first.AwaitReady()) << first.Log();
  std::filesystem::remove(first.socket_dir() / "pinfeedd.lock");
  const std::string pid = std::to_string(first.pid());
  ExpectRefusal({"--socket-dir=" + first.socket_dir().string()}, kExitFailed,
                "the process with pid " + pid + " serves it already, on '" + first.rpc_path() + "'");
  first.Signal(SIGSTOP);  // one that says nothing is there all the same
  ExpectRefusal({"--socket-dir=" + first.socket_dir().string()}, kExitFailed, "pid " + pid + " serves it");
  first.Signal(SIGCONT);
  EXPECT_TRUE(std::filesystem::exists(first.rpc_path()));
}

// From when it waits for its configuration, which is long before it has anything to do with signals.
TEST(DaemonStartTest, ASighupOfTheFirstMomentsIsAReloadOnceItServes) {
  TempDir directory;
  const std::filesystem::path file = directory / "pinfeedd.toml";
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  const std::filesystem::path later = directory.Write("later.toml", "max_sessions = 7\n");
  DaemonProcess daemon({"--config=" + file.string()});
  UniqueFd pipe;
  while (!pipe) pipe.reset(::open(file.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));  // until it has it open
  daemon.Signal(SIGHUP);
  std::filesystem::rename(later, file);
  pipe.reset();  // an empty configuration
  ASSERT_TRUE(daemon.AwaitReady()) << daemon.Log();
  while (daemon.Log().find("the configuration was loaded: max_sessions = 7") == std::string::npos)
    std::this_thread::yield();
}

TEST(DaemonStartTest, ASigtermOfTheFirstMomentsEndsIt) {
  TempDir directory;
  const std::filesystem::path file = directory / "pinfeedd.toml";
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  DaemonProcess daemon({"--config=" + file.string()});
  UniqueFd pipe;
  while (!pipe) pipe.reset(::open(file.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.AwaitExit(), 128 + SIGTERM);
}

TEST(DaemonStartTest, RefusesAnHttpPortInUse) {
  UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  ASSERT_EQ(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  ExpectRefusal({"--http-listen=127.0.0.1:" + std::to_string(ntohs(address.sin_port))}, kExitFailed,
                "change http_listen");
}

TEST(DaemonStartTest, EndsOnSigtermAndLeavesNoSocket) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.AwaitReady()) << daemon.Log();
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.AwaitExit(), 0) << daemon.Log();
  EXPECT_FALSE(std::filesystem::exists(daemon.rpc_path()));
  EXPECT_FALSE(std::filesystem::exists(daemon.lifeline_path()));
  EXPECT_TRUE(std::filesystem::exists(daemon.socket_dir()));
}

// A private daemon, and the end of the pipe that keeps it alive.
struct PrivateDaemon {
  explicit PrivateDaemon(std::vector<std::string> arguments = {}) {
    int ends[2];
    PF_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
    const UniqueFd read_end(::fcntl(ends[0], F_DUPFD, 100));  // inherited by the daemon under this number
    ::close(ends[0]);
    lifetime.reset(ends[1]);
    arguments.insert(arguments.begin(), {"--private", "--lifetime-fd=" + std::to_string(read_end.get())});
    daemon.emplace(std::move(arguments));
  }
  UniqueFd lifetime;
  std::optional<DaemonProcess> daemon;
};

TEST(DaemonStartTest, PrivateDaemonEndsWithItsPipeAndRemovesItsDirectory) {
  PrivateDaemon it({"--http-listen=127.0.0.1:0"});  // which leaves a file there, too
  ASSERT_TRUE(it.daemon->AwaitReady()) << it.daemon->Log();
  EXPECT_TRUE(std::filesystem::exists(it.daemon->socket_dir() / "http.port"));
  it.lifetime.reset();
  EXPECT_EQ(it.daemon->AwaitExit(), 0) << it.daemon->Log();
  EXPECT_FALSE(std::filesystem::exists(it.daemon->socket_dir()));
}

TEST(DaemonStartTest, PrivateDaemonLeavesADirectoryWithSomethingElseInIt) {
  PrivateDaemon it;
  ASSERT_TRUE(it.daemon->AwaitReady()) << it.daemon->Log();
  const std::filesystem::path kept = it.daemon->socket_dir() / "kept";
  std::filesystem::create_directory(kept);
  it.lifetime.reset();
  EXPECT_EQ(it.daemon->AwaitExit(), 0) << it.daemon->Log();
  const std::filesystem::directory_iterator begin(it.daemon->socket_dir());
  EXPECT_EQ(std::vector<std::filesystem::path>(begin, {}), std::vector<std::filesystem::path>{kept});
}

TEST(DaemonStartTest, PrivateNeedsAPipe) {
  ExpectRefusal({"--private"}, kExitConfig, "requires --lifetime-fd");
}

}  // namespace
}  // namespace pinfeed
