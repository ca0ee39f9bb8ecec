// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/packed_entries.h"

#include <vector>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

std::string Packed(const std::vector<DirectoryEntry>& entries) {
  std::string bytes;
  for (const DirectoryEntry& entry : entries) PackedEntries::Append(entry, bytes);
  return bytes;
}

TEST(PackedEntriesTest, GivesWhatWasPacked) {
  const std::string bytes =
      Packed({{"\xFF.png", EntryKind::kFile}, {"pipe", EntryKind::kOther}, {"sub", EntryKind::kDirectory}});
  ASSERT_TRUE(PackedEntries::IsValid(bytes));
  PackedEntries entries(bytes);
  EXPECT_EQ(entries.Next()->name, "\xFF.png");
  EXPECT_EQ(entries.Next()->kind, EntryKind::kOther);
  const std::optional<DirectoryEntry> last = entries.Next();
  EXPECT_EQ(last->name, "sub");
  EXPECT_EQ(last->kind, EntryKind::kDirectory);
  EXPECT_FALSE(entries.Next().has_value());
  EXPECT_TRUE(PackedEntries::IsValid(""));
}

TEST(PackedEntriesTest, ImpossibleEntriesAreNotValid) {
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
    EXPECT_FALSE(PackedEntries::IsValid(entries)) << testing::PrintToString(entries);
  }
}

}  // namespace
}  // namespace pinfeed
