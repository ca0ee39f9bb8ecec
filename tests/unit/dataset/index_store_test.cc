// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/index_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "server/dataset/packed_entries.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;

class IndexStoreTest : public ::testing::Test {
 protected:
  std::string Path() const { return dir_ / "cache/index"; }
  std::unique_ptr<IndexStore> Open() const { return IndexStore::Open(Path()).value(); }
  static void Save(IndexStore& store, std::string_view dataset, uint64_t inode) {
    std::vector<SavedNode> nodes = {{{{1, inode}, 2, 3, 4}, "\0\1\0a"}};
    nodes[0].contents = std::string_view("\0\1\0a", 4);
    IndexMemory memory;
    store.Save(NodesOf::kImageFolder, dataset, nodes, memory);
  }
  static std::optional<SavedIndex> Load(IndexStore& store, std::string_view dataset) {
    IndexMemory memory;
    return store.Load(NodesOf::kImageFolder, dataset, memory);
  }
  static bool Has(IndexStore& store, std::string_view dataset, uint64_t inode) {
    const std::optional<SavedIndex> saved = Load(store, dataset);
    return saved && saved->Find({{1, inode}, 2, 3, 4}).has_value();
  }
  // The only file that the store has.
  fs::path File() const {
    const std::vector<fs::path> files{fs::directory_iterator(Path()), fs::directory_iterator()};
    EXPECT_EQ(files.size(), 1U);
    return files.empty() ? fs::path() : files[0];
  }
  size_t Files() const { return std::distance(fs::directory_iterator(Path()), fs::directory_iterator()); }
  // Of the form that the store gives.
  std::string Name(size_t number, const std::string& suffix = "") const {
    const std::string digits = std::to_string(number);
    return Path() + "/" + std::string(16 - digits.size(), '0') + digits + ".folders" + suffix;
  }
  static void SetAge(const fs::path& file, time_t seconds) {
    const timespec then{::time(nullptr) - seconds, 0};
    const timespec times[2] = {then, then};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  }

  TempDir dir_;
};

TEST_F(IndexStoreTest, KeepsWhatWasSavedLast) {
  {
    const auto store = Open();
    EXPECT_FALSE(Load(*store, "/data").has_value());
    Save(*store, "/data", 1);
    Save(*store, "/data", 2);
    Save(*store, "/other", 3);
  }
  const auto store = Open();
  EXPECT_FALSE(Has(*store, "/data", 1));
  EXPECT_TRUE(Has(*store, "/data", 2));
  EXPECT_TRUE(Has(*store, "/other", 3));
  EXPECT_EQ(Files(), 2U);
}

TEST_F(IndexStoreTest, OneFolderMayBeOpenedAsTwoFormats) {
  const auto store = Open();
  Save(*store, "/data", 1);
  IndexMemory memory;
  EXPECT_FALSE(store->Load(NodesOf::kShards, "/data", memory).has_value());
  std::vector<SavedNode> shards = {{{{1, 2}, 2, 3, 4}, "packed"}};
  store->Save(NodesOf::kShards, "/data", shards, memory);
  ASSERT_TRUE(store->Load(NodesOf::kShards, "/data", memory).has_value());
  EXPECT_TRUE(Has(*store, "/data", 1));
  EXPECT_EQ(Files(), 2U);
}

TEST_F(IndexStoreTest, WhatTheHostHasNoMemoryForIsNeitherReadNorWritten) {
  const auto store = Open();
  uint64_t available = 0;
  HostMemoryLedger ledger([&](uint64_t) -> Result<HostMemory> {
    return HostMemory{uint64_t{1} << 30, available, "a group", "a tighter group"};
  });
  std::string entries;
  const std::string name(2000, 'n');
  while (entries.size() < (2U << 20)) PackedEntries::Append({name, EntryKind::kFile}, entries);
  const NodeVersion version{{1, 5}, 2, 3, 4};
  const auto save = [&] {
    std::vector<SavedNode> nodes = {{version, entries}};
    IndexMemory memory(ledger);
    store->Save(NodesOf::kImageFolder, "/data", nodes, memory);
  };
  const auto load = [&] {
    IndexMemory memory(ledger);
    return store->Load(NodesOf::kImageFolder, "/data", memory).has_value();
  };
  save();
  EXPECT_EQ(Files(), 0U);
  available = uint64_t{1} << 30;
  save();
  EXPECT_TRUE(load());
  available = 0;
  EXPECT_FALSE(load());
}

TEST_F(IndexStoreTest, IsForItsUserOnly) {
  const auto store = Open();
  Save(*store, "/data", 1);
  struct stat info = {};
  ASSERT_EQ(::stat(Path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  ASSERT_EQ(::stat(File().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(IndexStoreTest, RefusesADirectoryThatOthersMayWrite) {
  fs::create_directories(Path());
  ASSERT_EQ(::chmod(Path().c_str(), 0770), 0);
  EXPECT_THAT(IndexStore::Open(Path()),
              StatusIs(Code::kPermissionDenied, HasSubstr("written by other users")));
}

TEST_F(IndexStoreTest, RefusesADirectoryOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  fs::create_directories(Path());
  ASSERT_EQ(::chown(Path().c_str(), 12345, 12345), 0);
  EXPECT_THAT(IndexStore::Open(Path()), StatusIs(Code::kPermissionDenied, HasSubstr("user 12345")));
}

TEST_F(IndexStoreTest, RefusesAFileInItsPlace) {
  dir_.Write("cache/index", std::string_view("text"));
  EXPECT_THAT(IndexStore::Open(Path()), StatusIs(Code::kNotFound, HasSubstr("cache/index")));
}

TEST_F(IndexStoreTest, IgnoresFilesThatAreNotItsOwn) {
  const auto store = Open();
  Save(*store, "/data", 1);
  const fs::path file = File();
  const auto others = [&](void (*change)(const fs::path&)) {
    change(file);
    EXPECT_FALSE(Load(*store, "/data").has_value());
    Save(*store, "/data", 1);  // replaces it
    EXPECT_TRUE(Has(*store, "/data", 1));
  };
  others([](const fs::path& path) { ASSERT_EQ(::chmod(path.c_str(), 0620), 0); });
  others([](const fs::path& path) { ASSERT_EQ(::chmod(path.c_str(), 0602), 0); });
  others([](const fs::path& path) {
    fs::rename(path, path.string() + ".aside");
    fs::create_symlink(path.filename().string() + ".aside", path);
  });
  if (::geteuid() == 0)
    others([](const fs::path& path) { ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0); });
}

TEST_F(IndexStoreTest, IgnoresDamagedFiles) {
  const auto store = Open();
  Save(*store, "/data", 1);
  const fs::path file = File();
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_FALSE(Load(*store, "/data").has_value());
  fs::resize_file(file, IndexStore::kMaxFileBytes + 1);  // sparse
  EXPECT_FALSE(Load(*store, "/data").has_value());
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_FALSE(Load(*store, "/data").has_value());
  Save(*store, "/data", 1);
  EXPECT_TRUE(Has(*store, "/data", 1));
}

TEST_F(IndexStoreTest, DoesNotReadWhatIsTooLargeToBeSaved) {
  const auto store = Open();
  void* const nothing = ::mmap(nullptr, IndexStore::kMaxFileBytes, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  std::vector<SavedNode> nodes = {
      {{{1, 1}, 2, 3, 4}, {static_cast<const char*>(nothing), IndexStore::kMaxFileBytes}}};
  IndexMemory memory;
  store->Save(NodesOf::kImageFolder, "/data", nodes, memory);
  ::munmap(nothing, IndexStore::kMaxFileBytes);
  EXPECT_EQ(Files(), 0U);
}

TEST_F(IndexStoreTest, DoesWithoutADirectoryThatWasRemoved) {
  const auto store = Open();
  fs::remove_all(Path());
  Save(*store, "/data", 1);
  EXPECT_FALSE(Load(*store, "/data").has_value());
}

TEST_F(IndexStoreTest, RemovesWhatWasUsedLongestAgo) {
  const auto store = Open();
  Save(*store, "/used", 1);
  SetAge(File(), 100);
  const fs::path used = File();
  Save(*store, "/unused", 2);
  for (const fs::path& file : fs::directory_iterator(Path())) SetAge(file, file == used ? 100 : 50);
  EXPECT_TRUE(Has(*store, "/used", 1));
  for (size_t i = 0; i < IndexStore::kMaxFiles - 2; ++i) std::ofstream(Name(i)).put('x');
  EXPECT_EQ(Files(), IndexStore::kMaxFiles);
  Save(*store, "/new", 3);
  EXPECT_EQ(Files(), IndexStore::kMaxFiles);
  EXPECT_TRUE(Has(*store, "/used", 1));
  EXPECT_TRUE(Has(*store, "/new", 3));
  EXPECT_FALSE(Load(*store, "/unused").has_value());
}

TEST_F(IndexStoreTest, TakesABoundedNumberOfBytes) {
  const auto store = Open();
  for (int i = 0; i < 2; ++i) {
    const std::string path = Name(i);
    std::ofstream(path).put('x');
    fs::resize_file(path, IndexStore::kMaxBytes / 2);  // sparse
    SetAge(path, 10 - i);
  }
  Save(*store, "/data", 1);
  EXPECT_FALSE(fs::exists(Name(0)));
  EXPECT_TRUE(fs::exists(Name(1)));
  EXPECT_TRUE(Has(*store, "/data", 1));
}

TEST_F(IndexStoreTest, RemovesWhatAnEndedDaemonWasWriting) {
  const auto store = Open();
  for (const char* suffix : {".1.0.tmp", ".2.0.tmp"}) std::ofstream(Name(1, suffix)).put('x');
  SetAge(Name(1, ".1.0.tmp"), 7200);
  Save(*store, "/data", 1);
  EXPECT_FALSE(fs::exists(Name(1, ".1.0.tmp")));
  EXPECT_TRUE(fs::exists(Name(1, ".2.0.tmp")));
}

TEST_F(IndexStoreTest, LeavesFilesOfOthersAlone) {
  const auto store = Open();
  const std::string own = fs::path(Name(1)).filename();
  std::vector<std::string> others = {"notes",       "old.tmp", "a.folders",
                                     own.substr(1), own + "x", own + ".tmp~"};
  for (const char* suffix : {".bak.1.tmp", "-1.0.tmp", ".1.0"}) others.push_back(own + suffix);
  for (const std::string& name : others) {
    std::ofstream(Path() + "/" + name).put('x');
    fs::resize_file(Path() + "/" + name, IndexStore::kMaxBytes);  // sparse
    SetAge(Path() + "/" + name, 7200);
  }
  Save(*store, "/data", 1);
  Save(*store, "/other", 2);
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(Path() + "/" + name)) << name;
  EXPECT_TRUE(Has(*store, "/data", 1)) << "its bytes are not those of the others";
}

}  // namespace
}  // namespace pinfeed
