// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/saved_index.h"

#include <cstring>

#include "server/dataset/fingerprint.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using ::testing::HasSubstr;

std::string Packed(const std::vector<DirectoryEntry>& entries) {
  std::string bytes;
  for (const DirectoryEntry& entry : entries) PackedEntries::Append(entry, bytes);
  return bytes;
}

NodeVersion Version(uint64_t inode, int64_t modified_ns = 5) {
  return {{1, inode}, 7, modified_ns, 6};
}

std::string Encode(std::vector<SavedNode> folders) {
  return EncodeSavedIndex(folders);
}

const std::string kImages = Packed({{"a.jpg", EntryKind::kFile}, {"\xFF.png", EntryKind::kFile}});
const std::string kMixed = Packed({{"pipe", EntryKind::kOther}, {"sub", EntryKind::kDirectory}});

TEST(SavedIndexTest, FindsWhatWasSaved) {
  const std::string bytes = Encode({{Version(9), kMixed}, {Version(2), kImages}, {Version(4), ""}});
  ASSERT_OK_AND_ASSIGN(const SavedIndex saved, SavedIndex::Parse(bytes));
  EXPECT_EQ(saved.size(), 3U);
  std::optional<PackedEntries> images = saved.Find(Version(2));
  ASSERT_TRUE(images.has_value());
  EXPECT_EQ(images->Next()->name, "a.jpg");
  EXPECT_EQ(images->Next()->name, "\xFF.png");
  EXPECT_FALSE(images->Next().has_value());
  ASSERT_TRUE(saved.Find(Version(9)).has_value());
  EXPECT_EQ(saved.Find(Version(9))->bytes(), kMixed);
  ASSERT_TRUE(saved.Find(Version(4)).has_value());
  EXPECT_EQ(saved.Find(Version(4))->bytes(), "");
}

TEST(SavedIndexTest, FindsNoOtherVersion) {
  ASSERT_OK_AND_ASSIGN(const SavedIndex saved, SavedIndex::Parse(Encode({{Version(2), kImages}})));
  EXPECT_FALSE(saved.Find(Version(1)).has_value());
  EXPECT_FALSE(saved.Find(Version(3)).has_value());
  EXPECT_FALSE(saved.Find(Version(2, 4)).has_value());
  EXPECT_FALSE(saved.Find(Version(2, 6)).has_value());
  for (auto change : {+[](NodeVersion& v) { ++v.id.device; }, +[](NodeVersion& v) { ++v.file_system; },
                      +[](NodeVersion& v) { ++v.changed_ns; }}) {
    NodeVersion other = Version(2);
    change(other);
    EXPECT_FALSE(saved.Find(other).has_value());
  }
}

TEST(SavedIndexTest, KeepsOneOfEqualVersions) {
  std::vector<SavedNode> folders = {{Version(2), kImages}, {Version(2), kImages}};
  ASSERT_OK_AND_ASSIGN(const SavedIndex saved, SavedIndex::Parse(EncodeSavedIndex(folders)));
  EXPECT_EQ(saved.size(), 1U);
}

TEST(SavedIndexTest, RefusesCutFiles) {
  const std::string bytes = Encode({{Version(2), kImages}, {Version(9), kMixed}});
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THAT(SavedIndex::Parse(bytes.substr(0, size)), StatusIs(Code::kDataLoss)) << size;
  EXPECT_THAT(SavedIndex::Parse(bytes + '\0'), StatusIs(Code::kDataLoss));
}

TEST(SavedIndexTest, RefusesEachFlippedBit) {
  const std::string bytes = Encode({{Version(2), kImages}, {Version(9), kMixed}});
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    EXPECT_THAT(SavedIndex::Parse(flipped), StatusIs(Code::kDataLoss)) << bit;
  }
}

// Files whose checksum is right.
TEST(SavedIndexTest, RefusesImpossibleEntries) {
  const std::string whole = Packed({{"a.jpg", EntryKind::kFile}});
  for (const std::string& entries : {
           Packed({{"a/b", EntryKind::kFile}}),
           Packed({{std::string_view("a\0b", 3), EntryKind::kFile}}),
           Packed({{"", EntryKind::kFile}}),
           Packed({{".", EntryKind::kDirectory}}),
           Packed({{"..", EntryKind::kDirectory}}),
           Packed({{"a", EntryKind::kDangling}}),
           Packed({{"a", static_cast<EntryKind>(9)}}),
           whole.substr(0, whole.size() - 1),
           whole + '\0',
       }) {
    EXPECT_THAT(SavedIndex::Parse(Encode({{Version(2), entries}})),
                StatusIs(Code::kDataLoss, HasSubstr("impossible")));
  }
}

class ForgedFileTest : public ::testing::Test {
 protected:
  static constexpr size_t kHeaderBytes = 24;
  static constexpr size_t kRecordBytes = 48;
  static constexpr size_t kEndOffset = 40;  // in a record

  // Writes a number, and puts the checksum right.
  void Set(size_t offset, uint64_t value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof(value));
    uint64_t folders = 0;
    std::memcpy(&folders, bytes_.data() + 8, sizeof(folders));
    const uint64_t checksum = HashWords(folders, std::string_view(bytes_).substr(kHeaderBytes));
    std::memcpy(bytes_.data() + 16, &checksum, sizeof(checksum));
  }
  std::string bytes_ = Encode({{Version(2), kImages}, {Version(9), kMixed}});
};

TEST_F(ForgedFileTest, IsAcceptedUnchanged) {
  Set(8, 2);
  EXPECT_OK(SavedIndex::Parse(bytes_));
}

TEST_F(ForgedFileTest, WithOtherNumbersOfDirectoriesIsRefused) {
  for (const uint64_t folders : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{1} << 60, UINT64_MAX}) {
    Set(8, folders);
    EXPECT_THAT(SavedIndex::Parse(bytes_), StatusIs(Code::kDataLoss)) << folders;
  }
}

TEST_F(ForgedFileTest, WithEntriesElsewhereIsRefused) {
  for (const uint64_t end : {uint64_t{1}, uint64_t{1000}, UINT64_MAX}) {
    for (const size_t record : {0, 1}) {
      const std::string before = bytes_;
      Set(kHeaderBytes + record * kRecordBytes + kEndOffset, end);
      EXPECT_THAT(SavedIndex::Parse(bytes_), StatusIs(Code::kDataLoss)) << record << " " << end;
      bytes_ = before;
    }
  }
}

TEST_F(ForgedFileTest, OutOfOrderIsRefused) {
  Set(kHeaderBytes + 8, 9);  // the first directory's inode
  EXPECT_THAT(SavedIndex::Parse(bytes_), StatusIs(Code::kDataLoss, HasSubstr("order")));
}

}  // namespace
}  // namespace pinfeed
