// SPDX-License-Identifier: Apache-2.0
// Writes a trace for chrome://tracing and ui.perfetto.dev. In: pinfeed.v1.TraceResponse, one by one. Out: a
// JSON file. Format: "Trace Event Format", the JSON object form
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

// Purpose: sorts spans into rows. Each daemon thread has a row (read, decode, copy). Each feed has a row per
// session (wait, step, publish) and per slot (fill, copy, lent). Spans of a row follow each other or nest.
// Copyable. Threads: one. Errors: none. Kinds of spans that only a newer daemon knows are left out.
class ChromeTrace {
 public:
  void Add(const Json& response);
  // Writes JSON. Strings are escaped, and invalid UTF-8 is replaced.
  void Write(std::ostream& out) const;

  uint64_t spans() const { return spans_.size(); }
  uint64_t lost() const { return lost_; }
  bool full() const { return full_; }
  // The time from the first span's begin to the last span's end.
  double seconds() const;
  // Per kind of span ("copy", "wait", ...): the count, and the summed duration in nanoseconds.
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
  // A row's place: Chrome's "process" (a group of rows) and "thread".
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
