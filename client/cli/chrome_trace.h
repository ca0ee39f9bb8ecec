// SPDX-License-Identifier: Apache-2.0
// A trace as chrome://tracing and ui.perfetto.dev open it. In: pinfeed.v1.TraceResponse, one by one. Out: a
// file of JSON. Format: "Trace Event Format", the JSON object form
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/json_field.h"

namespace pinfeed {

// Purpose: sorts spans into rows: a thread of the daemon each (read, decode, copy), and for each feed a row a
// session (wait, step, publish) and a row a slot (fill, copy, lent). Spans of a row lie behind or within each
// other. A value; one thread. Errors: none; unknown kinds of spans, of a newer daemon, are left out.
class ChromeTrace {
 public:
  void Add(const Json& response);
  // Writes JSON; strings are escaped, and what is not UTF-8 replaced.
  void Write(std::ostream& out) const;

  uint64_t spans() const { return spans_.size(); }
  uint64_t lost() const { return lost_; }
  bool full() const { return full_; }
  // From the first span's begin to the last one's end.
  double seconds() const;
  // Of all spans of a kind ("copy", "wait", ...): how many, and how long they are together, in nanoseconds.
  std::map<std::string, std::pair<uint64_t, uint64_t>> Totals() const;

 private:
  struct Span {
    uint32_t kind = 0;
    uint32_t slot = 0;
    uint32_t thread = 0;
    uint32_t samples = 0;
    bool open = false;
    uint64_t feed = 0, session = 0, epoch = 0, batch = 0, begin_ns = 0, end_ns = 0;
  };
  // A row: Chrome's "process" (a group of rows) and "thread".
  struct Row {
    uint64_t group = 0;
    uint64_t row = 0;
    bool operator<(const Row& other) const {
      return std::pair(group, row) < std::pair(other.group, other.row);
    }
  };
  static Row ThreadRow(const Span& span);
  static Row SlotRow(const Span& span);
  static Row SessionRow(const Span& span);
  void WriteNames(std::ostream& out, const std::set<Row>& rows) const;

  std::vector<Span> spans_;
  std::map<uint64_t, std::string> threads_;
  std::map<uint64_t, std::string> feeds_;
  std::map<uint64_t, std::string> sessions_;
  uint64_t daemon_pid_ = 0;
  uint64_t lost_ = 0;
  bool full_ = false;
};

}  // namespace pinfeed
