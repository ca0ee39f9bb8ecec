// SPDX-License-Identifier: Apache-2.0
#include "common/base/log_context.h"

#include <algorithm>

namespace pinfeed {
namespace {

thread_local LogContext current;

bool IsHex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

}  // namespace

LogScope::LogScope(const LogContext& context) : outer_(current) {
  if (context.session != 0) current.session = context.session;
  if (context.feed != 0) current.feed = context.feed;
  if (!context.trace_id.empty()) current.trace_id = context.trace_id;
}

LogScope::~LogScope() {
  current = outer_;
}

const LogContext& CurrentLogContext() {
  return current;
}

std::string LogContextJson(const LogContext& context) {
  std::string out;
  if (context.session != 0) out += ",\"session\":" + std::to_string(context.session);
  if (context.feed != 0) out += ",\"feed\":" + std::to_string(context.feed);
  if (!context.trace_id.empty()) out += ",\"trace_id\":\"" + context.trace_id + "\"";
  return out;
}

// VERSION-TRACE ID-PARENT ID-FLAGS of 2, 32, 16 and 2 digits. Later versions may append more fields after
// another dash. Version ff is invalid.
std::optional<std::string> TraceIdOf(std::string_view header) {
  constexpr size_t kLength = 55;
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-')
    return std::nullopt;
  const std::string_view version = header.substr(0, 2);
  const std::string_view trace = header.substr(3, 32);
  const std::string_view parent = header.substr(36, 16);
  if (!IsHex(version) || !IsHex(trace) || !IsHex(parent) || !IsHex(header.substr(53, 2))) return std::nullopt;
  if (version == "ff" || IsZero(trace) || IsZero(parent)) return std::nullopt;
  if (header.size() > kLength && (version == "00" || header[kLength] != '-')) return std::nullopt;
  return std::string(trace);
}

}  // namespace pinfeed
