// SPDX-License-Identifier: Apache-2.0
// The index of shards that is kept from one open to the next.
#include "server/dataset/formats/shard_index.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include "server/storage/local_file.h"
#include "tests/support/memory_storage.h"
#include "tests/support/testing.h"
#include "tests/unit/dataset/tar_file.h"

namespace pinfeed {
namespace {

constexpr int64_t kHour = 3'600'000'000'000;

class KeptShardsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(store_, IndexStore::Open(dir_ / "index"));
    for (const char* name : {"a.tar", "b.tar"}) Write(name, "1.txt");
  }
  void Write(const std::string& name, const std::string& file) {
    storage_.Write("set/" + name, TarMemberBytes(file, "text of " + name) + TarEnd());
  }
  Result<std::vector<ShardIndex>> Index(int64_t now_ns) {
    return IndexShards(*storage_.At("set"), {"a.tar", "b.tar"}, store_.get(), now_ns);
  }
  // From now on a shard that is read is an error.
  void Break() {
    for (const char* name : {"set/a.tar", "set/b.tar"}) storage_.Break(name);
  }

  TempDir dir_;
  MemoryStorage storage_;
  std::unique_ptr<IndexStore> store_;
};

TEST_F(KeptShardsTest, WhatHasNotChangedForAnHourIsNotReadAgain) {
  ASSERT_OK_AND_ASSIGN(const auto read, Index(2 * kHour));
  Break();
  ASSERT_OK_AND_ASSIGN(const auto kept, Index(2 * kHour));
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_EQ(kept[1].name, "b.tar");
  EXPECT_EQ(kept[1].file_bytes, read[1].file_bytes);
  EXPECT_EQ(kept[1].keys[0], "1");
  EXPECT_EQ(kept[1].fields.at("txt")[0].offset, read[1].fields.at("txt")[0].offset);
}

TEST_F(KeptShardsTest, LabelsAreKept) {
  storage_.Write("set/a.tar", TarMemberBytes("1.cls", "5") + TarMemberBytes("2.cls", "-6\n") + TarEnd());
  ASSERT_OK_AND_ASSIGN(const auto read, Index(2 * kHour));
  EXPECT_THAT(read[0].labels, testing::ElementsAre(5, -6));
  Break();
  ASSERT_OK_AND_ASSIGN(const auto kept, Index(2 * kHour));
  EXPECT_THAT(kept[0].labels, testing::ElementsAre(5, -6));
}

TEST_F(KeptShardsTest, WhatHasChangedLatelyIsReadAgain) {
  ASSERT_OK(Index(kHour / 2));
  Break();
  EXPECT_THAT(Index(2 * kHour), StatusIs(Code::kDataLoss, testing::HasSubstr("a.tar")));
}

// As on a file server whose clock is ahead.
TEST_F(KeptShardsTest, TimesThatAreStillToComeAreNoReasonToWaitForThem) {
  storage_.SetClock(UnixNanoseconds() + kHour);
  Write("a.tar", "1.txt");
  EXPECT_OK(Index(kHour));
}

TEST_F(KeptShardsTest, OnlyWhatHasChangedIsReadAgain) {
  ASSERT_OK(Index(2 * kHour));
  storage_.Break("set/b.tar");
  Write("a.tar", "2.txt");  // of the same size
  ASSERT_OK_AND_ASSIGN(const auto shards, Index(2 * kHour));
  EXPECT_EQ(shards[0].keys[0], "2");
  EXPECT_EQ(shards[1].keys[0], "1");
  Break();
  ASSERT_OK_AND_ASSIGN(const auto kept, Index(2 * kHour));
  EXPECT_EQ(kept[0].keys[0], "2");
}

TEST_F(KeptShardsTest, WhatIsImpossibleIsReadAgain) {
  ASSERT_OK(Index(2 * kHour));
  IndexMemory memory;
  const std::optional<SavedIndex> kept = store_->Load(NodesOf::kShards, "memory:/set", memory);
  ASSERT_TRUE(kept.has_value());
  ASSERT_EQ(kept->size(), 2U);
  std::vector<SavedNode> nodes = {{kept->At(0).version, "nonsense"}, {kept->At(1).version, ""}};
  store_->Save(NodesOf::kShards, "memory:/set", nodes, memory);
  ASSERT_OK_AND_ASSIGN(const auto shards, Index(2 * kHour));
  EXPECT_EQ(shards[0].keys.size(), 1U);
  EXPECT_EQ(shards[1].keys.size(), 1U);
}

// How many of the shard's indexes are kept that lies in a file below the directory.
size_t KeptOfFile(const TempDir& dir) {
  dir.Write("set/a.tar", TarMemberBytes("1.txt", "text") + TarEnd());
  const auto store = IndexStore::Open(dir / "index").value();
  const LocalPath set = LocalPath::Resolve((dir / "set").string(), {dir.path().string()}).value();
  EXPECT_OK(IndexShards(set, {"a.tar"}, store.get(), UnixNanoseconds() + 2 * kHour).status());
  IndexMemory memory;
  const std::optional<SavedIndex> kept = store->Load(NodesOf::kShards, set.path(), memory);
  return kept ? kept->size() : 0;
}

TEST(KeptFilesTest, FilesAreKeptButThoseOnATmpfs) {
  const TempDir dir;
  struct statfs system = {};
  ASSERT_EQ(::statfs(dir.path().c_str(), &system), 0);
  EXPECT_EQ(KeptOfFile(dir), system.f_type == TMPFS_MAGIC ? 0U : 1U);
  const ScopedEnv memory("TMPDIR", "/dev/shm");
  const TempDir on_tmpfs;
  EXPECT_EQ(KeptOfFile(on_tmpfs), 0U);
}

}  // namespace
}  // namespace pinfeed
