// SPDX-License-Identifier: Apache-2.0
// The context of log lines: ids for the fields of JSON lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pinfeed {

struct LogContext {
  uint64_t session = 0;       // 0: none
  uint64_t feed = 0;          // 0: none
  std::string trace_id = {};  // 32 hexadecimal digits, or empty
};

// Purpose: sets the log context of this thread during its lifetime. Unset fields inherit from the outer
// scope. Threads: created and destroyed on one thread, in stack order.
class LogScope {
 public:
  explicit LogScope(const LogContext& context);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  const LogContext outer_;
};

// The current context of this thread.
const LogContext& CurrentLogContext();

// `,"session":3,"feed":2,"trace_id":"..."`, with the fields that are set.
std::string LogContextJson(const LogContext& context);

// The trace id of a W3C traceparent header (w3.org/TR/trace-context, section 3.2). Empty for an invalid
// header, which must be ignored.
std::optional<std::string> TraceIdOf(std::string_view traceparent);

}  // namespace pinfeed
