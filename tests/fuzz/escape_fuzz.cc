// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a name from a disk or a peer, as a traceparent, and as the text of a log line.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/quote.h"
#include "common/base/status.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): libFuzzer wants the function outside
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto is_line = [](const std::string& line) {
    return IsUtf8(line) && std::none_of(line.begin(), line.end(), [](char c) {
             return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
           });
  };
  const std::string name = EscapeName(text);
  PF_CHECK(is_line(name), "a name is one line of UTF-8");
  for (char c = '\x80'; c < '\xA0'; ++c)
    PF_CHECK(name.find({'\xC2', c}) == std::string::npos, "no control character of a terminal");
  for (const std::string_view hidden :
       {"\u061c", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202b", "\u202c", "\u202d",
        "\u202e", "\u2066", "\u2067", "\u2068", "\u2069", "\ufeff", "\U000e0041"})
    PF_CHECK(name.find(hidden) == std::string::npos, "a name shows all that it holds");
  const std::string cell = EscapeUnprintable(text);
  PF_CHECK(is_line(cell), "a cell of a table is one line of UTF-8");
  PF_CHECK(EscapeUnprintable(cell) == cell && EscapeUnprintable(name) == name, "what is escaped stays");
  PF_CHECK(name.size() <= kMaxQuotedBytes + 16, "a name is bounded");
  const std::string json = JsonEscape(text);
  PF_CHECK(is_line(json), "the inside of a JSON string is one line of UTF-8");
  for (size_t i = 0; i < json.size(); ++i) {
    PF_CHECK(json[i] != '"', "no quote ends the string");
    if (json[i] == '\\') {
      const bool pair = i + 1 < json.size() && (json[i + 1] == '"' || json[i + 1] == '\\');
      PF_CHECK(pair || json.compare(i + 1, 1, "u") == 0, "a backslash leads an escape");
      i += pair ? 1 : 5;
      PF_CHECK(i < json.size(), "an escape is whole");
    }
  }
  if (const auto trace = TraceIdOf(text))
    PF_CHECK(trace->size() == 32 && is_line(*trace), "a trace id is one");
  return 0;
}
