// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/tar_reader.h"

#include <string>
#include <vector>

#include "tests/support/memory_storage.h"
#include "tests/support/testing.h"
#include "tests/unit/dataset/tar_file.h"

namespace pinfeed {
namespace {

// The members as "name offset size".
Result<std::vector<std::string>> Members(std::string bytes) {
  MemoryStorage storage;
  storage.Write("a.tar", std::move(bytes));
  const std::shared_ptr<const Location> location = storage.At("a.tar");
  ASSIGN_OR_RETURN(const std::unique_ptr<const RandomAccessFile> file, location->OpenFile(""));
  TarReader reader(*file);
  std::vector<std::string> members;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<TarMember> member, reader.Next());
    if (!member) return members;
    members.push_back(member->name + " " + std::to_string(member->offset) + " " +
                      std::to_string(member->size));
  }
}

std::string Changed(std::string member, size_t offset, std::string_view bytes) {
  member.replace(offset, bytes.size(), bytes);
  SignTarHeader(member);
  return member;
}

TEST(TarReaderTest, FilesComeWithTheirPlaces) {
  const std::string bytes = TarMemberBytes("a/1.txt", "abc") + TarMemberBytes("a/", "", '5') +
                            TarMemberBytes("b.bin", std::string(1025, 'x')) +
                            TarMemberBytes("empty", "", '\0') + TarMemberBytes("old directory/", "", '\0');
  EXPECT_THAT(Members(bytes + TarEnd()).value(),
              ElementsAre("a/1.txt 512 3", "b.bin 2048 1025", "empty 4096 0"));
  EXPECT_THAT(Members(bytes + TarEnd() + std::string(100'000, '\0')).value(), testing::SizeIs(3));
  EXPECT_THAT(Members(TarEnd()).value(), IsEmpty());
  // No data follow the header of a directory, whatever size it has.
  const std::string sized = Changed(TarMemberBytes("a/", "", '5'), 124, "00000002000");
  EXPECT_THAT(Members(sized + TarMemberBytes("1", "a") + TarEnd()).value(), ElementsAre("1 1024 1"));
}

TEST(TarReaderTest, TheStartOfEachFileIsRead) {
  // The last two headers that one read has: the data lie in it, or behind it.
  for (const int headers : {5, 6, 7, 8}) {
    std::string bytes;
    for (int i = 0; i < headers; ++i) bytes += TarMemberBytes("empty", "");
    MemoryStorage storage;
    storage.Write("a.tar", bytes + TarMemberBytes("1", "abcdef") + TarEnd());
    ASSERT_OK_AND_ASSIGN(const auto file, storage.At("a.tar")->OpenFile(""));
    TarReader reader(*file);
    TarMember member;
    while (member.name != "1") {
      ASSERT_OK_AND_ASSIGN(const auto next, reader.Next());
      ASSERT_TRUE(next.has_value());
      member = *next;
    }
    std::string start(4, '\0');
    ASSERT_OK(reader.ReadStart(member, std::as_writable_bytes(std::span(start))));
    EXPECT_EQ(start, "abcd") << headers;
    ASSERT_OK_AND_ASSIGN(const auto end, reader.Next());
    EXPECT_FALSE(end.has_value()) << headers;
  }
}

TEST(TarReaderTest, LongNamesComeInEachOfTheirForms) {
  const std::string name = std::string(120, 'd') + "/" + std::string(130, 'f') + ".jpg";
  const std::string prefixed = Changed(TarMemberBytes("f.jpg", "1"), 345, "some/folder");
  const std::string gnu = TarMemberBytes("././@LongLink", name + '\0', 'L') + TarMemberBytes("cut", "1");
  const std::string pax =
      TarMemberBytes("PaxHeaders/x", PaxRecord("mtime", "1.5") + PaxRecord("path", name), 'x') +
      TarMemberBytes("cut", "1");
  const std::string global = TarMemberBytes("PaxHeaders/g", PaxRecord("comment", "hello"), 'g');
  EXPECT_THAT(Members(prefixed + TarEnd()).value(), ElementsAre("some/folder/f.jpg 512 1"));
  EXPECT_THAT(Members(gnu + TarMemberBytes("short", "2") + TarEnd()).value(),
              ElementsAre(name + " 1536 1", "short 2560 1"));
  EXPECT_THAT(Members(global + pax + TarMemberBytes("short", "2") + TarEnd()).value(),
              ElementsAre(name + " 2560 1", "short 3584 1"));
}

TEST(TarReaderTest, SizesComeInEachOfTheirForms) {
  const std::string data = TarMemberBytes("x", "abc");
  const std::string binary = Changed(data, 124, std::string("\x80\0\0\0\0\0\0\0\0\0\0\3", 12));
  const std::string pax =
      TarMemberBytes("PaxHeaders/x", PaxRecord("size", "3"), 'x') + Changed(data, 124, "00000000000");
  const std::string blanks = Changed(data, 124, std::string("       3 \0\0\0", 12));
  EXPECT_THAT(Members(binary + TarEnd()).value(), ElementsAre("x 512 3"));
  EXPECT_THAT(Members(pax + TarEnd()).value(), ElementsAre("x 1536 3"));
  EXPECT_THAT(Members(blanks + TarEnd()).value(), ElementsAre("x 512 3"));
}

TEST(TarReaderTest, DamageIsToldWithPathAndOffset) {
  const std::string good = TarMemberBytes("a.txt", "abc");
  const auto damage = [&](const std::string& bytes, const std::string& what) {
    EXPECT_THAT(Members(bytes),
                StatusIs(Code::kDataLoss, AllOf(HasSubstr("'memory:/a.tar' at offset "), HasSubstr(what))));
  };
  damage("", "without the mark of its end");
  damage(good, "without the mark of its end");
  damage(good + std::string(100, '\0'), "ends within a block");
  damage(good.substr(0, 514), "ends within a file");
  damage("x" + good.substr(1) + TarEnd(), "checksum");
  damage(Changed(good, 124, "00000010000") + TarEnd(), "ends within a file");
  damage(Changed(good, 124, "77777777777") + TarEnd(), "ends within a file");
  damage(Changed(good, 124, std::string("\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12)) + TarEnd(),
         "ends within a file");
  damage(Changed(good, 124, std::string("\x80\1\0\0\0\0\0\0\0\0\0\0", 12)) + TarEnd(), "no valid size");
  damage(Changed(good, 124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff") + TarEnd(), "no valid size");
  damage(Changed(good, 124, "0000000000z") + TarEnd(), "no valid size");
  damage(Changed(good, 124, std::string(12, '\0')) + TarEnd(), "no valid size");
  damage(TarMemberBytes("", "abc") + TarEnd(), "no valid name");
  damage(TarMemberBytes("././@LongLink", "name", 'L') + TarEnd(), "no file behind it");
  for (const std::string& text :
       {std::string("9 path=a"), std::string("3 a\n"), std::string("99 path=a\n"), std::string("x path=a\n"),
        std::string("4 a\n"), std::string("18446744073709551615 a=b\n"), PaxRecord("size", "-1"),
        PaxRecord("size", "")}) {
    SCOPED_TRACE(text);
    damage(TarMemberBytes("PaxHeaders/x", text, 'x') + good + TarEnd(), "pax header");
  }
}

TEST(TarReaderTest, WhatIsNoFileIsRefused) {
  const std::string good = TarMemberBytes("a.txt", "abc");
  const auto refused = [&](const std::string& bytes, const std::string& what) {
    EXPECT_THAT(Members(bytes), StatusIs(Code::kInvalidArgument,
                                         AllOf(HasSubstr("'memory:/a.tar' at offset "), HasSubstr(what))));
  };
  for (const char type : {'1', '2'})
    refused(TarMemberBytes("b.txt", "", type) + good + TarEnd(), "--dereference");
  for (const char type : {'3', '4', '6', 'S', 'M', 'V'})
    refused(TarMemberBytes("b.txt", "", type) + good + TarEnd(), "no regular file");
  refused(good + TarEnd() + good + TarEnd(), "more follows behind the mark of its end");
  refused(good + std::string((64U << 20) + 2 * kTarBlock, '\0'), "goes on for 67109888 bytes");
  refused(TarMemberBytes("PaxHeaders/x", PaxRecord("GNU.sparse.major", "1"), 'x') + good + TarEnd(),
          "sparse");
  refused(TarMemberBytes("PaxHeaders/g", PaxRecord("path", "all"), 'g') + good + TarEnd(), "global header");
  refused(TarMemberBytes("././@LongLink", std::string(5000, 'n'), 'L') + good + TarEnd(), "at most 4097");
}

}  // namespace
}  // namespace pinfeed
