// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>

#include "common/base/ascii_case.h"

namespace pinfeed {
namespace {

enum : uint32_t { kRead = 1, kDecode, kFill, kCopy, kPublish, kLent, kWait, kStep };
// As in pinfeed.v1.Span.Kind, which has capitals.
constexpr std::array<const char*, 9> kKinds = {"",        "read", "decode", "fill", "copy",
                                               "publish", "lent", "wait",   "step"};
// Base numbers of groups and rows. Viewers read 32 bits and treat 0 specially.
constexpr uint64_t kDaemonGroup = 1;
constexpr uint64_t kFeedGroups = 1000;
constexpr uint64_t kSlotRows = 1;
constexpr uint64_t kSessionRows = 1000;

uint32_t KindOf(const Json& span) {
  const std::string name = TextField(span, "kind");
  for (uint32_t kind = 1; kind < kKinds.size(); ++kind) {
    if (EqualsIgnoringCase(name, kKinds[kind])) return kind;
  }
  return 0;
}

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

// Formats nanoseconds as the format's microseconds, without losing digits.
std::string Micros(uint64_t nanoseconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%" PRIu64 ".%03u", nanoseconds / 1000,
                static_cast<unsigned>(nanoseconds % 1000));
  return text.data();
}

}  // namespace

ChromeTrace::Row ChromeTrace::ThreadRow(const Span& span) {
  return {kDaemonGroup, span.thread};
}
ChromeTrace::Row ChromeTrace::SlotRow(const Span& span) {
  return {kFeedGroups + span.feed, kSlotRows + span.slot};
}
ChromeTrace::Row ChromeTrace::SessionRow(const Span& span) {
  return {kFeedGroups + span.feed, kSessionRows + span.session};
}

void ChromeTrace::Add(const Json& response) {
  for (const Json& thread : ListField(response, "threads"))
    threads_[UintField(thread, "thread")] = TextField(thread, "name");
  for (const Json& feed : ListField(response, "feeds"))
    feeds_[UintField(feed, "feed")] = TextField(feed, "dataset");
  for (const Json& session : ListField(response, "sessions")) {
    sessions_[UintField(session, "session")] =
        TextField(session, "client_name") + " (pid " + std::to_string(UintField(session, "pid")) + ")";
  }
  if (const uint64_t pid = UintField(response, "daemon_pid"); pid != 0) daemon_pid_ = pid;
  lost_ = std::max(lost_, UintField(response, "lost"));
  full_ = full_ || (response.contains("full") && response["full"] == true);
  for (const Json& message : ListField(response, "spans")) {
    Span span{.kind = KindOf(message),
              .begin_ns = UintField(message, "begin_ns"),
              .end_ns = UintField(message, "end_ns")};
    if (span.kind == 0 || span.end_ns < span.begin_ns) continue;
    span.slot = static_cast<uint32_t>(UintField(message, "slot"));
    span.thread = static_cast<uint32_t>(UintField(message, "thread"));
    span.samples = static_cast<uint32_t>(UintField(message, "samples"));
    span.open = message.contains("open") && message["open"] == true;
    span.feed = UintField(message, "feed");
    span.session = UintField(message, "session");
    span.epoch = UintField(message, "epoch");
    span.batch = UintField(message, "batch");
    spans_.push_back(span);
  }
}

double ChromeTrace::seconds() const {
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
  for (const Span& span : spans_) {
    begin = std::min(begin, span.begin_ns);
    end = std::max(end, span.end_ns);
  }
  return spans_.empty() ? 0 : static_cast<double>(end - begin) / 1e9;
}

std::map<std::string, std::pair<uint64_t, uint64_t>> ChromeTrace::Totals() const {
  std::map<std::string, std::pair<uint64_t, uint64_t>> totals;
  for (const Span& span : spans_) {
    auto& [count, time_ns] = totals[kKinds.at(span.kind)];
    ++count;
    time_ns += span.end_ns - span.begin_ns;
  }
  return totals;
}

void ChromeTrace::WriteNames(std::ostream& out, const std::set<Row>& rows) const {
  const auto name = [&](const char* what, const Row& row, const std::string& text) {
    out << R"({"ph":"M","name":")" << what << R"(","pid":)" << row.group << R"(,"tid":)" << row.row
        << R"(,"args":{"name":)" << Quoted(text) << "}},\n";
  };
  const auto order = [&](const char* what, const Row& row, uint64_t index) {
    out << R"({"ph":"M","name":")" << what << R"(","pid":)" << row.group << R"(,"tid":)" << row.row
        << R"(,"args":{"sort_index":)" << index << "}},\n";
  };
  const auto or_number = [](const std::map<uint64_t, std::string>& names, uint64_t number) {
    const auto found = names.find(number);
    return found == names.end() ? std::string() : ": " + found->second;
  };
  uint64_t last_group = 0;
  uint64_t index = 0;
  for (const Row& row : rows) {
    const bool feed = row.group >= kFeedGroups;
    if (row.group != last_group) {
      const uint64_t id = row.group - kFeedGroups;
      name("process_name", row,
           feed ? "feed " + std::to_string(id) + or_number(feeds_, id)
                : "pinfeedd (pid " + std::to_string(daemon_pid_) + ")");
      order("process_sort_index", row, row.group);
    }
    last_group = row.group;
    if (!feed) {
      const auto found = threads_.find(row.row);
      name("thread_name", row, found == threads_.end() ? "thread " + std::to_string(row.row) : found->second);
    } else if (row.row < kSessionRows) {
      name("thread_name", row, "slot " + std::to_string(row.row - kSlotRows));
    } else {
      const uint64_t session = row.row - kSessionRows;
      name("thread_name", row, "session " + std::to_string(session) + or_number(sessions_, session));
    }
    const bool slot = feed && row.row < kSessionRows;
    order("thread_sort_index", row, slot ? rows.size() + index : index);  // slots after all other rows
    ++index;
  }
}

void ChromeTrace::Write(std::ostream& out) const {
  std::vector<std::pair<Row, Span>> drawn;
  drawn.reserve(spans_.size());
  for (const Span& span : spans_) {
    const bool of_thread = span.kind == kRead || span.kind == kDecode || span.kind == kCopy;
    if (of_thread) drawn.emplace_back(ThreadRow(span), span);
    if (span.kind == kFill || span.kind == kCopy || span.kind == kLent)
      drawn.emplace_back(SlotRow(span), span);
    if (span.kind == kPublish || span.kind == kWait || span.kind == kStep)
      drawn.emplace_back(SessionRow(span), span);
  }
  std::stable_sort(drawn.begin(), drawn.end(),
                   [](const auto& a, const auto& b) { return a.second.begin_ns < b.second.begin_ns; });
  std::set<Row> rows;
  for (const auto& [row, span] : drawn) rows.insert(row);

  out << R"({"displayTimeUnit":"ms","otherData":{"clock":"CLOCK_MONOTONIC","lost_spans":)" << lost_
      << "},\"traceEvents\":[\n";
  WriteNames(out, rows);
  for (const auto& [row, span] : drawn) {
    const char* const kind = kKinds.at(span.kind);
    const bool named = span.kind != kWait || span.samples != 0;
    out << R"({"ph":")" << (span.kind == kPublish ? R"(i","s":"t)" : "X") << R"(","name":")" << kind;
    if (named) out << ' ' << span.batch;
    out << R"(","cat":")" << kind << R"(","ts":)" << Micros(span.begin_ns);
    if (span.kind != kPublish) out << R"(,"dur":)" << Micros(span.end_ns - span.begin_ns);
    out << R"(,"pid":)" << row.group << R"(,"tid":)" << row.row << R"(,"args":{"feed":)" << span.feed;
    if (named) {
      out << R"(,"epoch":)" << span.epoch << R"(,"batch":)" << span.batch << R"(,"samples":)" << span.samples;
    }
    if (span.kind >= kFill && span.kind <= kLent) out << R"(,"slot":)" << span.slot;
    if (span.open) out << R"(,"open":true)";
    out << "}},\n";
  }
  out << R"({"ph":"M","name":"trace_ends","pid":1,"tid":1,"args":{}}]})" << '\n';
}

}  // namespace pinfeed
