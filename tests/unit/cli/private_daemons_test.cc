// SPDX-License-Identifier: Apache-2.0
#include "client/cli/private_daemons.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/unique_handle.h"
#include "common/os/unix_address.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;

// A table of processes that says what the test wants, and folders of daemons.
class PrivateDaemonsTest : public ::testing::Test {
 protected:
  // The folder of a daemon, with its socket.
  std::string Folder(const char* name) const {
    fs::create_directory(dir_ / name);
    fs::permissions(dir_ / name, fs::perms::owner_all);
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(AtSocketPath(::bind, socket.get(), SocketOf(name)), 0);
    return dir_ / name;
  }
  std::string SocketOf(const char* name) const { return (dir_ / name).string() + "/pinfeed.sock"; }
  void Process(int pid, int parent, uid_t uid, const std::vector<std::string>& words) const {
    const std::string process = "proc/" + std::to_string(pid);
    std::string line;
    for (const std::string& word : words) line += word + '\0';
    dir_.Write(process + "/cmdline", line);
    dir_.Write(process + "/status", "Name:\tx\nPPid:\t" + std::to_string(parent) + "\nUid:\t" +
                                        std::to_string(uid) + "\t" + std::to_string(uid) + "\n");
  }
  void Daemon(int pid, int parent, uid_t uid, const std::string& folder) const {
    Process(pid, parent, uid,
            {"/usr/bin/pinfeedd", "--private", "--lifetime-fd", "5", "--socket-dir", folder});
  }
  std::vector<PrivateDaemon> Find() const { return FindPrivateDaemons(kOwn, dir_ / "proc"); }

  const uid_t kOwn = ::geteuid();
  TempDir dir_;
};

TEST_F(PrivateDaemonsTest, FindsThoseOfTheUserWithTheirTrainers) {
  Daemon(30, 21, kOwn, Folder("b"));
  Daemon(31, 20, kOwn, Folder("a"));
  Process(20, 1, kOwn, {"/usr/bin/python3", "/jobs/train.py", "--data", "/data"});
  Process(21, 1, kOwn, {"python3", std::string("\x1b[2J") + std::string(100, 'x')});
  dir_.Write("proc/uptime", "1 2");
  const std::vector<PrivateDaemon> found = Find();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(Describe(found[0]), "pid 20 (python3 train.py --data /data): --address " + SocketOf("a"));
  EXPECT_EQ(found[1].trainer, 21);
  EXPECT_EQ(found[1].command, "python3 \\x1b[2J" + std::string(44, 'x') + " ...");
  EXPECT_EQ(found[1].address, SocketOf("b"));
}

TEST_F(PrivateDaemonsTest, PassesOverWhatIsNoPrivateDaemonOfTheUser) {
  Daemon(30, 1, kOwn + 1, Folder("of_another_user"));
  Process(31, 1, kOwn, {"pinfeedd", "--socket-dir", Folder("common")});
  Process(32, 1, kOwn, {"pinfeedd", "--private", "--socket-dir"});
  Process(33, 1, kOwn, {"pinfeedd", "--private", "--socket-dir", "relative"});
  Process(34, 1, kOwn, {});  // it has ended, and nobody has waited for it
  Daemon(35, 1, kOwn, dir_ / "removed");
  dir_.Write("proc/36/cmdline", "");
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(PrivateDaemonsTest, PassesOverSocketsThatAnotherUserMayHavePutThere) {
  Daemon(30, 1, kOwn, Folder("shared"));
  fs::permissions(dir_ / "shared", fs::perms::all);
  const std::string folder = Folder("folder");
  fs::create_directory_symlink(folder, dir_ / "link");
  Daemon(31, 1, kOwn, dir_ / "link");
  dir_.Write("file/pinfeed.sock", "");
  Daemon(32, 1, kOwn, dir_ / "file");
  EXPECT_THAT(Find(), IsEmpty());
  if (kOwn == 0) {  // who may give files away
    ASSERT_EQ(::chown(folder.c_str(), 12345, 12345), 0);
    Daemon(33, 1, kOwn, folder);
    EXPECT_THAT(Find(), IsEmpty());
  }
}

TEST_F(PrivateDaemonsTest, ToolsThatRunADaemonAreNotCountedBesideIt) {
  const std::string folder = Folder("one");
  Process(30, 1, kOwn, {"strace", "pinfeedd", "--private", "--socket-dir", folder});
  Process(31, 30, kOwn, {"pinfeedd", "--private", "--socket-dir", folder});
  EXPECT_EQ(Find().size(), 1U);
}

}  // namespace
}  // namespace pinfeed
