// SPDX-License-Identifier: Apache-2.0
#include "common/base/quote.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace pinfeed {
namespace {

void AppendHex(std::string& out, uint8_t byte) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 0xF];
}

struct CodePoints {
  char32_t first;
  char32_t last;
};

constexpr CodePoints kUnprintable[] = {
#include "common/base/unprintable.inc"
};

// The code point of a well-formed sequence (Unicode 14, table 3-6).
char32_t CodePoint(std::string_view sequence) {
  const auto first = static_cast<uint8_t>(sequence[0]);
  if (sequence.size() == 1) return first;
  char32_t code = first & (0x7FU >> sequence.size());
  for (const char c : sequence.substr(1)) code = code << 6 | (static_cast<uint8_t>(c) & 0x3FU);
  return code;
}

// Whether a character is invisible or unsafe to print. It could break a line, change the text direction,
// control a terminal, or make two names look alike.
bool IsUnprintable(std::string_view sequence) {
  const char32_t code = CodePoint(sequence);
  const auto* const range = std::lower_bound(std::begin(kUnprintable), std::end(kUnprintable), code,
                                             [](const CodePoints& one, char32_t c) { return one.last < c; });
  return range != std::end(kUnprintable) && range->first <= code;
}

// Removes the first character of `rest`, which must not be empty, and appends it in visible form.
void AppendVisible(std::string& out, std::string_view& rest) {
  const size_t length = Utf8Length(rest);
  const std::string_view sequence = rest.substr(0, length == 0 ? 1 : length);
  if (sequence == "\n") {
    out += "\\n";
  } else if (sequence == "\t") {
    out += "\\t";
  } else if (length == 0 || IsUnprintable(sequence)) {
    for (const char c : sequence) AppendHex(out, static_cast<uint8_t>(c));
  } else {
    out += sequence;
  }
  rest.remove_prefix(sequence.size());
}

}  // namespace

size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) second_min = 0xA0;
    if (first == 0xED) second_max = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) second_min = 0x90;
    if (first == 0xF4) second_max = 0x8F;
  }
  if (length == 0 || text.size() < length || byte(1) < second_min || byte(1) > second_max) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string EscapeName(std::string_view name) {
  std::string out;
  out.reserve(name.size());
  while (!name.empty()) {
    if (out.size() >= kMaxQuotedBytes) return out + "...";
    if (name.front() == '\\' || name.front() == '\'') out += '\\';
    AppendVisible(out, name);
  }
  return out;
}

std::string EscapeUnprintable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) AppendVisible(out, text);
  return out;
}

std::string QuotePath(std::string_view path) {
  return "'" + EscapeName(path) + "'";
}

}  // namespace pinfeed
