// SPDX-License-Identifier: Apache-2.0
// What a log line is about, beside its text: for the fields of JSON lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pinfeed {

struct LogContext {
  uint64_t session = 0;  // 0: none
  uint64_t feed = 0;     // likewise
  std::string trace_id;  // 32 hexadecimal digits, or empty
};

// Purpose: says what the lines of this thread are about while it lives; what it leaves unset is as outside of
// it. Threads: made and destroyed by one, in the order of a stack.
class LogScope {
 public:
  explicit LogScope(const LogContext& context);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  const LogContext outer_;
};

// Of this thread, now.
const LogContext& CurrentLogContext();

// `,"session":3,"feed":2,"trace_id":"..."`, each where it is set.
std::string LogContextJson(const LogContext& context);

// The trace id of a W3C traceparent header (w3.org/TR/trace-context, section 3.2): nothing when it is not
// valid, and then it is to be ignored.
std::optional<std::string> TraceIdOf(std::string_view traceparent);

}  // namespace pinfeed
