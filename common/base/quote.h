// SPDX-License-Identifier: Apache-2.0
// Makes untrusted names safe for messages and logs. For any input bytes, the result is one line of UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pinfeed {

// Longer names are truncated and end in "...".
inline constexpr size_t kMaxQuotedBytes = 4096;

// The length of the well-formed UTF-8 sequence at the start of `text`, which must not be empty (Unicode 15,
// table 3-7); 0 when there is none.
size_t Utf8Length(std::string_view text);

// Whether `text` is well-formed UTF-8 (no surrogates, no overlong forms, nothing above U+10FFFF).
bool IsUtf8(std::string_view text);

// Escapes unprintable characters (common/base/unprintable.inc), backslashes, single quotes and bytes that are
// not UTF-8 as \n, \\, \', \x1b, \xe2\x80\xae, ...
std::string EscapeName(std::string_view name);

// As EscapeName, but keeps backslashes and single quotes and never truncates. For tables, which do not quote
// names.
std::string EscapeUnprintable(std::string_view text);

// EscapeName between single quotes: '/data/a b.png'.
std::string QuotePath(std::string_view path);

}  // namespace pinfeed
