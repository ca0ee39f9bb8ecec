// SPDX-License-Identifier: Apache-2.0
#include "common/quote.h"

#include <cstdint>

namespace pinfeed {
namespace {

void AppendHex(std::string& out, uint8_t byte) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 0xF];
}

// C0 controls and DEL; the C1 controls, which terminals obey too; U+2028, U+2029 and what turns the direction
// of text (Unicode 15, table 23-3), which make one line look like others.
bool IsControl(std::string_view sequence) {
  const auto first = static_cast<uint8_t>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7F;
  const auto second = static_cast<uint8_t>(sequence[1]);
  if (sequence.size() == 2) return (first == 0xC2 && second < 0xA0) || (first == 0xD8 && second == 0x9C);
  if (sequence.size() != 3 || first != 0xE2) return false;
  const auto third = static_cast<uint8_t>(sequence[2]);
  return (second == 0x80 && ((third >= 0x8E && third <= 0x8F) || (third >= 0xA8 && third <= 0xAE))) ||
         (second == 0x81 && third >= 0xA6 && third <= 0xA9);
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
    const size_t length = Utf8Length(name);
    const std::string_view sequence = name.substr(0, length == 0 ? 1 : length);
    if (sequence == "\n") {
      out += "\\n";
    } else if (sequence == "\t") {
      out += "\\t";
    } else if (sequence == "\\" || sequence == "'") {
      out += '\\';
      out += sequence;
    } else if (length == 0 || IsControl(sequence)) {
      for (const char c : sequence) AppendHex(out, static_cast<uint8_t>(c));
    } else {
      out += sequence;
    }
    name.remove_prefix(sequence.size());
  }
  return out;
}

std::string QuotePath(std::string_view path) {
  return "'" + EscapeName(path) + "'";
}

}  // namespace pinfeed
