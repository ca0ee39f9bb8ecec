// SPDX-License-Identifier: Apache-2.0
#include "common/base/quote.h"

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(QuoteTest, LeavesPrintableTextAlone) {
  EXPECT_EQ(QuotePath("/data/a b/ä€😀.png"), "'/data/a b/ä€😀.png'");
}

TEST(QuoteTest, EscapesWhatWouldBreakALineOrATerminal) {
  EXPECT_EQ(QuotePath("a\nb\tc\x1b[31m\x7f"), "'a\\nb\\tc\\x1b[31m\\x7f'");
  EXPECT_EQ(QuotePath("it's\\n"), "'it\\'s\\\\n'");
  EXPECT_EQ(QuotePath(std::string_view("a\0b", 3)), "'a\\x00b'");
  EXPECT_EQ(EscapeName("\xC2\x9B"), "\\xc2\\x9b");  // CSI, as one C1 control
  EXPECT_EQ(EscapeName("\xC2\xA0"), "\xC2\xA0");
  EXPECT_EQ(EscapeName("\xE2\x80\xA8"), "\\xe2\\x80\\xa8");                             // a line separator
  EXPECT_EQ(EscapeName("\xE2\x80\xAE\xE2\x81\xA6"), "\\xe2\\x80\\xae\\xe2\\x81\\xa6");  // other directions
  EXPECT_EQ(EscapeName("\xD8\x9C"), "\\xd8\\x9c");
  EXPECT_EQ(EscapeName("\xE2\x80\xA6"), "\xE2\x80\xA6");  // an ellipsis
}

// None of them takes room of its own on a screen, or they have no glyph: two names could look alike.
TEST(QuoteTest, EscapesWhatIsNoVisibleCharacter) {
  for (const std::string_view hidden :
       {"\u0080",     "\u009f",     "\u00ad",     "\u034f",     "\u061c",     "\u115f",     "\u180e",
        "\u200b",     "\u200c",     "\u200d",     "\u200e",     "\u200f",     "\u2028",     "\u2029",
        "\u202a",     "\u202e",     "\u2060",     "\u2065",     "\u2066",     "\u2069",     "\u206f",
        "\u3164",     "\ue000",     "\ufe0f",     "\ufeff",     "\uffa0",     "\ufff9",     "\uffff",
        "\u0378",     "\U0001D173", "\U0001FFFF", "\U00050000", "\U000E0001", "\U000E0020", "\U000E0100",
        "\U000F0000", "\U0010FFFF"}) {
    const std::string escaped = EscapeName("a" + std::string(hidden) + "b");
    EXPECT_EQ(escaped.size(), 2 + 4 * hidden.size()) << escaped;
    EXPECT_EQ(escaped.substr(0, 3), "a\\x");
  }
  for (const std::string_view shown : {" ", "~", "\u00a1", "\u0300", "\u05d0", "\u0627", "\u1100", "\u2026",
                                       "\u20ac", "\u4e2d", "\uac00", "\ufffd", "\U0001F600", "\U00020000"})
    EXPECT_EQ(EscapeName(shown), shown);
}

TEST(QuoteTest, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(EscapeName("caf\xE9"), "caf\\xe9");
  EXPECT_EQ(EscapeName("\xED\xA0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(EscapeName("\xC0\xAF"), "\\xc0\\xaf");                    // an overlong slash
  EXPECT_EQ(EscapeName("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  EXPECT_EQ(EscapeName("\xE2\x82"), "\\xe2\\x82");                    // cut short
}

TEST(QuoteTest, EveryByteStringBecomesUtf8) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string name = {static_cast<char>(first), static_cast<char>(second), 'x'};
      EXPECT_TRUE(IsUtf8(EscapeName(name)));
      if (IsUtf8(name) && first >= 0x80) {
        EXPECT_TRUE(first >= 0xC2 && first <= 0xDF && second >= 0x80 && second < 0xC0);
      }
    }
  }
}

TEST(QuoteTest, TextOfTablesKeepsItsQuotes) {
  EXPECT_EQ(EscapeUnprintable("it's a\\b \u20ac"), "it's a\\b \u20ac");
  EXPECT_EQ(EscapeUnprintable("a\nb\x1b\u202e\xff"), "a\\nb\\x1b\\xe2\\x80\\xae\\xff");
  EXPECT_EQ(EscapeUnprintable(std::string(2 * kMaxQuotedBytes, 'a')).size(), 2 * kMaxQuotedBytes);
}

TEST(QuoteTest, CutsEndlessNames) {
  const std::string escaped = EscapeName(std::string(1'000'000, '\n'));
  EXPECT_LE(escaped.size(), kMaxQuotedBytes + 8);
  EXPECT_TRUE(escaped.ends_with("..."));
}

}  // namespace
}  // namespace pinfeed
