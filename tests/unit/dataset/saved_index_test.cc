// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/saved_index.h"

#include <cstring>

#include "server/dataset/fingerprint.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

NodeVersion Version(uint64_t inode, int64_t modified_ns = 5) {
  return {{1, inode}, 7, modified_ns, 6};
}

std::string Encode(std::vector<SavedNode> nodes) {
  return EncodeSavedIndex(nodes);
}

const std::string kFirst("a\0b", 3);
const std::string kSecond = "what another one has";

TEST(SavedIndexTest, FindsWhatWasSaved) {
  const std::string bytes = Encode({{Version(9), kSecond}, {Version(2), kFirst}, {Version(4), ""}});
  ASSERT_OK_AND_ASSIGN(const SavedIndex saved, SavedIndex::Parse(bytes));
  EXPECT_EQ(saved.size(), 3U);
  EXPECT_EQ(saved.Find(Version(2)), kFirst);
  EXPECT_EQ(saved.Find(Version(9)), kSecond);
  EXPECT_EQ(saved.Find(Version(4)), "");
}

TEST(SavedIndexTest, FindsNoOtherVersion) {
  ASSERT_OK_AND_ASSIGN(const SavedIndex saved, SavedIndex::Parse(Encode({{Version(2), kFirst}})));
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
  std::vector<SavedNode> nodes = {{Version(2), kFirst}, {Version(2), kFirst}};
  ASSERT_OK_AND_ASSIGN(const SavedIndex saved, SavedIndex::Parse(EncodeSavedIndex(nodes)));
  EXPECT_EQ(saved.size(), 1U);
}

TEST(SavedIndexTest, RefusesCutFiles) {
  const std::string bytes = Encode({{Version(2), kFirst}, {Version(9), kSecond}});
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THAT(SavedIndex::Parse(bytes.substr(0, size)), StatusIs(Code::kDataLoss)) << size;
  EXPECT_THAT(SavedIndex::Parse(bytes + '\0'), StatusIs(Code::kDataLoss));
}

TEST(SavedIndexTest, RefusesEachFlippedBit) {
  const std::string bytes = Encode({{Version(2), kFirst}, {Version(9), kSecond}});
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    EXPECT_THAT(SavedIndex::Parse(flipped), StatusIs(Code::kDataLoss)) << bit;
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
    uint64_t nodes = 0;
    std::memcpy(&nodes, bytes_.data() + 8, sizeof(nodes));
    const uint64_t checksum = HashWords(nodes, std::string_view(bytes_).substr(kHeaderBytes));
    std::memcpy(bytes_.data() + 16, &checksum, sizeof(checksum));
  }
  std::string bytes_ = Encode({{Version(2), kFirst}, {Version(9), kSecond}});
};

TEST_F(ForgedFileTest, IsAcceptedUnchanged) {
  Set(8, 2);
  EXPECT_OK(SavedIndex::Parse(bytes_));
}

TEST_F(ForgedFileTest, WithOtherNumbersOfNodesIsRefused) {
  for (const uint64_t nodes : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{1} << 60, UINT64_MAX}) {
    Set(8, nodes);
    EXPECT_THAT(SavedIndex::Parse(bytes_), StatusIs(Code::kDataLoss)) << nodes;
  }
}

TEST_F(ForgedFileTest, WithContentsElsewhereIsRefused) {
  for (const uint64_t end : {uint64_t{1}, uint64_t{1000}, UINT64_MAX}) {
    for (const size_t record : {0, 1}) {
      if (record == 0 && end == 1)
        continue;  // the contents of both nodes are others, which their readers check
      const std::string before = bytes_;
      Set(kHeaderBytes + record * kRecordBytes + kEndOffset, end);
      EXPECT_THAT(SavedIndex::Parse(bytes_), StatusIs(Code::kDataLoss)) << record << " " << end;
      bytes_ = before;
    }
  }
}

TEST_F(ForgedFileTest, OutOfOrderIsRefused) {
  Set(kHeaderBytes + 8, 9);  // the first node's inode
  EXPECT_THAT(SavedIndex::Parse(bytes_), StatusIs(Code::kDataLoss, HasSubstr("order")));
}

}  // namespace
}  // namespace pinfeed
