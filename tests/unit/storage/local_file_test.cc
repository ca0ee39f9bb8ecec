// SPDX-License-Identifier: Apache-2.0
#include "server/storage/local_file.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <optional>
#include <thread>

#include "common/os/unix_address.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;
using ::testing::_;

// A root with a folder "set", and a secret beside the root.
class LocalFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.Write("root/set/a.txt", "hello");
    dir_.Write("root/other/b.txt", "other");
    dir_.Write("secret.txt", "secret");
  }
  std::string Path(std::string_view below) const { return dir_ / below; }
  Result<LocalPath> Resolve(std::string_view below) const {
    return LocalPath::Resolve(Path(below), {Path("root")});
  }
  Status OpenStatus(std::string_view below) const {
    const Result<LocalPath> base = Resolve("root/set");
    if (!base.ok()) return base.status();
    return base->OpenFile(below).status();
  }
  static std::string Text(const RandomAccessFile& file) {
    std::vector<std::byte> bytes;
    EXPECT_OK(file.ReadAll(1000, bytes));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  TempDir dir_;
};

TEST_F(LocalFileTest, AHardLinkInAnotherFolderHasAnotherStamp) {
  fs::create_hard_link(Path("root/set/a.txt"), Path("root/other/a.txt"));
  ASSERT_OK_AND_ASSIGN(const LocalPath root, Resolve("root"));
  ASSERT_OK_AND_ASSIGN(const Stamp first, root.StampOf("set/a.txt"));
  ASSERT_OK_AND_ASSIGN(const Stamp other, root.StampOf("other/a.txt"));
  EXPECT_NE(first, other);
  for (const auto& [path, below] : {std::pair("root/set", "a.txt"), std::pair("root/set/a.txt", "")}) {
    ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve(path));
    ASSERT_OK_AND_ASSIGN(const Stamp same, base.StampOf(below));
    EXPECT_EQ(same, first) << path;
  }
}

TEST_F(LocalFileTest, OpensAFileBelowThePathAndThePathItself) {
  ASSERT_OK_AND_ASSIGN(const LocalPath folder, Resolve("root/set"));
  ASSERT_OK_AND_ASSIGN(const auto file, folder.OpenFile("a.txt"));
  EXPECT_EQ(Text(*file), "hello");
  EXPECT_EQ(file->size(), 5U);
  EXPECT_EQ(file->path(), Path("root/set/a.txt"));
  ASSERT_OK_AND_ASSIGN(const LocalPath itself, Resolve("root/set/a.txt"));
  ASSERT_OK_AND_ASSIGN(const auto same, itself.OpenFile(""));
  EXPECT_EQ(Text(*same), "hello");
}

// procfs gives times that say nothing of the contents, as FUSE and read-only file systems may.
TEST_F(LocalFileTest, VersionsOnlyWhereTimesTellOfChanges) {
  dir_.Write("a.jpg", "abc");
  ASSERT_OK_AND_ASSIGN(const LocalPath kept,
                       LocalPath::Resolve(dir_.path().string(), {dir_.path().string()}));
  const auto now = [] {
    return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const int64_t before = now();
  const std::optional<FileVersion> version = kept.OpenFile("a.jpg").value()->version();
  ASSERT_TRUE(version);
  EXPECT_GE(version->seen_ns, before);
  EXPECT_LE(version->seen_ns, now());
  ASSERT_OK_AND_ASSIGN(const LocalPath proc, LocalPath::Resolve("/proc/self", {"/proc"}));
  EXPECT_FALSE(proc.OpenFile("status").value()->version());
}

TEST_F(LocalFileTest, TheRootItselfCanBeTheDataset) {
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root"));
  ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile("set/a.txt"));
  EXPECT_EQ(Text(*file), "hello");
  ASSERT_OK_AND_ASSIGN(const LocalPath slash, LocalPath::Resolve("/", {"/"}));
  EXPECT_EQ(slash.FullPath("etc"), "/etc");
  EXPECT_OK(slash.OpenDirectory("").status());
}

TEST_F(LocalFileTest, PathsAreCleanedBeforeTheyAreCompared) {
  ASSERT_OK_AND_ASSIGN(const LocalPath base,
                       LocalPath::Resolve(Path("root") + "//./set/", {Path(".") + "/root///"}));
  EXPECT_EQ(base.path(), Path("root/set"));
  ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile("a.txt"));
  EXPECT_EQ(Text(*file), "hello");
}

TEST_F(LocalFileTest, RefusesPathsThatNameNothingCertain) {
  const std::vector<std::string> roots = {Path("root")};
  EXPECT_THAT(LocalPath::Resolve("", roots), StatusIs(Code::kInvalidArgument, HasSubstr("empty")));
  EXPECT_THAT(LocalPath::Resolve("set", roots),
              StatusIs(Code::kInvalidArgument, HasSubstr("'set' is relative")));
  EXPECT_THAT(LocalPath::Resolve(Path("root/../secret.txt"), roots),
              StatusIs(Code::kInvalidArgument, HasSubstr("'..'")));
  EXPECT_THAT(LocalPath::Resolve(Path("root/set/.."), roots),
              StatusIs(Code::kInvalidArgument, HasSubstr("'..'")));
  EXPECT_THAT(LocalPath::Resolve(Path("root") + std::string("/a\0b", 4), roots),
              StatusIs(Code::kInvalidArgument, HasSubstr("NUL")));
  EXPECT_OK(LocalPath::Resolve(Path("root/..a"), roots));
}

TEST_F(LocalFileTest, RefusesPathsThatNoRootHolds) {
  dir_.Write("roots/a.txt", "a");
  EXPECT_THAT(LocalPath::Resolve(Path("secret.txt"), {Path("root")}),
              StatusIs(Code::kPermissionDenied,
                       AllOf(HasSubstr(Path("secret.txt")), HasSubstr("'" + Path("root") + "'"))));
  EXPECT_THAT(LocalPath::Resolve(Path("roots/a.txt"), {Path("root")}), StatusIs(Code::kPermissionDenied));
  EXPECT_THAT(LocalPath::Resolve(Path("secret.txt"), {}),
              StatusIs(Code::kPermissionDenied, HasSubstr("there are none")));
  EXPECT_THAT(LocalPath::Resolve(Path("root/a"), {"data"}),
              StatusIs(Code::kInvalidArgument, HasSubstr("'data' is relative")));
  EXPECT_THAT(LocalPath::Resolve(Path("gone/a"), {Path("gone")}),
              StatusIs(Code::kNotFound, HasSubstr(Path("gone"))));
}

TEST_F(LocalFileTest, TheLongestRootDecides) {
  fs::create_symlink("../other/b.txt", Path("root/set/link"));
  ASSERT_OK_AND_ASSIGN(const LocalPath wide, LocalPath::Resolve(Path("root/set"), {Path("root")}));
  EXPECT_OK(wide.OpenFile("link").status());
  ASSERT_OK_AND_ASSIGN(const LocalPath narrow,
                       LocalPath::Resolve(Path("root/set"), {Path("root"), Path("root/set")}));
  EXPECT_THAT(narrow.OpenFile("link"), StatusIs(Code::kPermissionDenied, HasSubstr(Path("root/set/link"))));
}

TEST_F(LocalFileTest, ARootMayBeALink) {
  fs::create_symlink("root", Path("alias"));
  ASSERT_OK_AND_ASSIGN(const LocalPath base, LocalPath::Resolve(Path("alias/set"), {Path("alias")}));
  ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile("a.txt"));
  EXPECT_EQ(Text(*file), "hello");
}

TEST_F(LocalFileTest, LinksThatStayBelowTheRootAreFollowed) {
  fs::create_symlink("../other", Path("root/set/folder"));
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile("folder/b.txt"));
  EXPECT_EQ(Text(*file), "other");
  ASSERT_OK_AND_ASSIGN(const NodeKind kind, base.Kind("folder"));
  EXPECT_EQ(kind, NodeKind::kDirectory);
}

TEST_F(LocalFileTest, LinksThatLeaveTheRootAreRefusedByName) {
  fs::create_symlink("../../secret.txt", Path("root/set/relative"));
  fs::create_symlink(Path("secret.txt"), Path("root/set/absolute"));
  fs::create_symlink("../..", Path("root/set/up"));
  const std::string self = "/proc/self/cwd";
  fs::create_symlink(self, Path("root/set/magic"));
  EXPECT_THAT(OpenStatus("relative"),
              StatusIs(Code::kPermissionDenied, HasSubstr(Path("root/set/relative"))));
  EXPECT_THAT(OpenStatus("absolute"),
              StatusIs(Code::kPermissionDenied, HasSubstr(Path("root/set/absolute"))));
  EXPECT_THAT(OpenStatus("up/secret.txt"), StatusIs(Code::kPermissionDenied, HasSubstr("up/secret.txt")));
  EXPECT_THAT(OpenStatus("magic"), StatusIs(Code::kPermissionDenied, HasSubstr("magic")));
  // What is not there looks like what may not be seen.
  fs::create_symlink(Path("missing.txt"), Path("root/set/nothing"));
  EXPECT_THAT(OpenStatus("nothing"), StatusIs(Code::kPermissionDenied, HasSubstr("leaves the allowed root")));
}

TEST_F(LocalFileTest, AbsoluteLinksToPlacesBelowTheRootAreFollowed) {
  fs::create_symlink(Path("root/other"), Path("root/set/folder"));
  fs::create_symlink(Path("root/set/folder/b.txt"), Path("root/set/twice.txt"));
  fs::create_symlink(Path("root"), Path("alias"));
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  for (const char* name : {"folder/b.txt", "twice.txt"}) {
    ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile(name));
    EXPECT_EQ(Text(*file), "other");
  }
  ASSERT_OK_AND_ASSIGN(const LocalPath by_alias, LocalPath::Resolve(Path("alias/set"), {Path("alias")}));
  EXPECT_OK(by_alias.OpenFile("twice.txt").status());
  ASSERT_OK_AND_ASSIGN(const LocalPath anywhere, LocalPath::Resolve(Path("alias/set/folder"), {"/"}));
  EXPECT_OK(anywhere.OpenFile("b.txt").status());
  // The place that the link leads to is looked for below the root that was opened, whatever has its name now.
  fs::rename(Path("root"), Path("old"));
  fs::create_directory(Path("root"));
  EXPECT_FALSE(base.OpenFile("folder/b.txt").ok());
}

TEST_F(LocalFileTest, LinksInItsOwnPathAreFollowedOnceIfWanted) {
  dir_.Write("root/other/a.txt", "newer");
  const auto resolve = [this](std::string_view below, PathLinks links) {
    return ResolveLocation(Path(below), {Path("root")}, links).value();
  };
  const auto lead = [this](const fs::path& target) {
    fs::create_symlink(target, Path("root/new"));
    fs::rename(Path("root/new"), Path("root/current"));
  };
  for (const fs::path& first : {fs::path("set"), fs::path(Path("root/set"))}) {
    lead(first);
    const auto once = resolve("root/current", PathLinks::kFollowedOnce);
    const auto each_time = resolve("root/current", PathLinks::kFollowedAtEachUse);
    const auto file = resolve("root/current/a.txt", PathLinks::kFollowedOnce);
    lead("other");
    EXPECT_EQ(once->path(), Path("root/current"));
    EXPECT_EQ(Text(*once->OpenFile("a.txt").value()), "hello");
    EXPECT_EQ(Text(*each_time->OpenFile("a.txt").value()), "newer");
    EXPECT_EQ(Text(*file->OpenFile("").value()), "hello");
    EXPECT_EQ(Text(*file->Parent().value()->OpenFile("a.txt").value()), "hello");
  }
  EXPECT_THAT(resolve("root/none", PathLinks::kFollowedOnce)->OpenFile(""), StatusIs(Code::kNotFound, _));
}

TEST_F(LocalFileTest, AFolderSwappedForALinkAfterwardsIsRefused) {
  dir_.Write("outside/a.txt", "outside");
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  EXPECT_OK(base.OpenFile("a.txt").status());
  fs::rename(Path("root/set"), Path("root/moved"));
  fs::create_symlink("../outside", Path("root/set"));
  EXPECT_THAT(base.OpenFile("a.txt"), StatusIs(Code::kPermissionDenied, HasSubstr(Path("root/set/a.txt"))));
}

TEST_F(LocalFileTest, OnlyRegularFilesAreData) {
  ASSERT_EQ(::mkfifo(Path("root/set/fifo").c_str(), 0600), 0);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(AtSocketPath(::bind, socket.get(), Path("root/set/sock")), 0);
  EXPECT_THAT(OpenStatus("fifo"), StatusIs(Code::kInvalidArgument, HasSubstr("fifo': it is a FIFO")));
  EXPECT_THAT(OpenStatus("sock"), StatusIs(Code::kInvalidArgument, HasSubstr("sock': it is a socket")));
  EXPECT_THAT(OpenStatus(""), StatusIs(Code::kInvalidArgument, HasSubstr("set': it is a directory")));
  ASSERT_OK_AND_ASSIGN(const LocalPath device, LocalPath::Resolve("/dev/null", {"/dev"}));
  EXPECT_THAT(device.OpenFile(""),
              StatusIs(Code::kInvalidArgument, HasSubstr("'/dev/null': it is a device")));
  EXPECT_THAT(OpenStatus("gone"), StatusIs(Code::kNotFound, HasSubstr(Path("root/set/gone"))));
}

TEST_F(LocalFileTest, NamesWithControlBytesStayOnOneLine) {
  EXPECT_THAT(OpenStatus("a\nb\x1b\xff"),
              StatusIs(Code::kNotFound, AllOf(HasSubstr("a\\nb\\x1b\\xff"), Not(HasSubstr("\n")))));
}

TEST_F(LocalFileTest, ReadsExactRanges) {
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile("a.txt"));
  std::vector<std::byte> out(3);
  ASSERT_OK(file->ReadAt(1, out));
  EXPECT_EQ(static_cast<char>(out[0]), 'e');
  EXPECT_EQ(static_cast<char>(out[2]), 'l');
  EXPECT_OK(file->ReadAt(99, {}));
  EXPECT_THAT(file->ReadAt(3, out),
              StatusIs(Code::kDataLoss,
                       AllOf(HasSubstr("3 bytes at offset 3 of"), HasSubstr("a.txt"), HasSubstr("after 2"))));
  EXPECT_THAT(file->ReadAt(std::numeric_limits<uint64_t>::max(), out),
              StatusIs(Code::kDataLoss, HasSubstr("largest offset")));
  EXPECT_THAT(file->ReadAt(std::numeric_limits<int64_t>::max(), out),
              StatusIs(Code::kDataLoss, HasSubstr("largest offset")));
}

TEST_F(LocalFileTest, AFileCutWhileOpenIsDataLoss) {
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile("a.txt"));
  fs::resize_file(Path("root/set/a.txt"), 2);
  std::vector<std::byte> out;
  EXPECT_THAT(file->ReadAll(1000, out),
              StatusIs(Code::kDataLoss, AllOf(HasSubstr("after 2"), HasSubstr("had 5 bytes"))));
}

TEST_F(LocalFileTest, WholeFilesAreBounded) {
  dir_.Write("root/set/empty", "");
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile("a.txt"));
  ASSERT_OK_AND_ASSIGN(const auto empty, base.OpenFile("empty"));
  std::vector<std::byte> out;
  EXPECT_OK(file->ReadAll(5, out));
  EXPECT_THAT(
      file->ReadAll(4, out),
      StatusIs(Code::kDataLoss, AllOf(HasSubstr("a.txt"), HasSubstr("5 bytes exceed the limit of 4"))));
  EXPECT_THAT(empty->ReadAll(5, out), StatusIs(Code::kDataLoss, HasSubstr("is empty")));
}

TEST_F(LocalFileTest, AKernelWithoutOpenat2IsNamed) {
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  Status status;
  // A seccomp filter binds the thread that installs it, and ends with it.
  std::thread thread([&] {
    sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                             BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter = {std::size(program), program};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
      return;
    status = base.OpenFile("a.txt").status();
  });
  thread.join();
  EXPECT_THAT(status, StatusIs(Code::kUnimplemented,
                               AllOf(HasSubstr("a.txt"), HasSubstr("openat2"), HasSubstr("seccomp"))));
}

TEST_F(LocalFileTest, ScanTellsWhatEachEntryIs) {
  fs::create_directory(Path("root/set/dir"));
  fs::create_symlink("dir", Path("root/set/to_dir"));
  fs::create_symlink("a.txt", Path("root/set/to_file"));
  fs::create_symlink("gone", Path("root/set/to_nothing"));
  fs::create_symlink("to_itself", Path("root/set/to_itself"));
  ASSERT_EQ(::mkfifo(Path("root/set/fifo").c_str(), 0600), 0);
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  std::vector<std::pair<std::string, EntryKind>> seen;
  const auto visit = [&](const DirectoryEntry& entry) {
    seen.emplace_back(entry.name, entry.kind);
    return OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const NodeId id, base.List("", visit));
  EXPECT_THAT(seen, UnorderedElementsAre(
                        std::pair("a.txt", EntryKind::kFile), std::pair("dir", EntryKind::kDirectory),
                        std::pair("to_dir", EntryKind::kDirectory), std::pair("to_file", EntryKind::kFile),
                        std::pair("to_nothing", EntryKind::kDangling),
                        std::pair("to_itself", EntryKind::kDangling), std::pair("fifo", EntryKind::kOther)));
  ASSERT_OK_AND_ASSIGN(const NodeId same, base.List("../set", visit));
  EXPECT_TRUE(id == same);
  EXPECT_THAT(base.List("a.txt", visit), StatusIs(Code::kNotFound, HasSubstr("a.txt")));
  const auto stop = [](const DirectoryEntry&) { return DataLoss("stop"); };
  EXPECT_THAT(base.List("", stop), StatusIs(Code::kDataLoss, "stop"));
}

// How many pages of the file's part the page cache has.
size_t CachedPages(const std::string& path, size_t offset, size_t bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  void* const map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), static_cast<off_t>(offset));
  EXPECT_NE(map, MAP_FAILED);
  std::vector<unsigned char> pages(bytes / 4096);
  EXPECT_EQ(::mincore(map, bytes, pages.data()), 0);
  ::munmap(map, bytes);
  return static_cast<size_t>(
      std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }));
}

TEST_F(LocalFileTest, WhatIsReadAheadComesIntoThePageCache) {
  constexpr size_t kBytes = size_t{16} << 20;
  constexpr size_t kBegin = size_t{8} << 20;
  constexpr size_t kAhead = size_t{3} << 20;
  const std::string path = dir_.Write("root/set/large", std::string(kBytes, 'x'));
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile("large"));
  EXPECT_TRUE(file->Prefetch(0, kBytes).cached);
  {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::fsync(fd.get()), 0);
    ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }
  if (CachedPages(path, 0, kBytes) > 0) GTEST_SKIP() << "this file system keeps its files in memory";
  EXPECT_EQ(file->Prefetch(kBegin, kAhead).bytes, kAhead);
  while (CachedPages(path, kBegin, kAhead) < kAhead / 4096) std::this_thread::yield();
  EXPECT_TRUE(file->Prefetch(kBegin, kAhead).cached);
  EXPECT_EQ(CachedPages(path, kBytes - kAhead, kAhead), 0U);
}

TEST_F(LocalFileTest, NothingIsReadAheadBeyondTheEnd) {
  ASSERT_OK_AND_ASSIGN(const LocalPath base, Resolve("root/set"));
  ASSERT_OK_AND_ASSIGN(const auto file, base.OpenFile("a.txt"));
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 6}, {5, 1}, {UINT64_MAX, 1}, {1, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}, {0, 0}})
    EXPECT_TRUE(file->Prefetch(offset, bytes).cached);
}

TEST_F(LocalFileTest, AMovedPathStillOpens) {
  ASSERT_OK_AND_ASSIGN(LocalPath base, Resolve("root/set"));
  const LocalPath moved_base = std::move(base);
  ASSERT_OK_AND_ASSIGN(const auto file, moved_base.OpenFile("a.txt"));
  EXPECT_EQ(Text(*file), "hello");
}

}  // namespace
}  // namespace pinfeed
