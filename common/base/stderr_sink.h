// SPDX-License-Identifier: Apache-2.0
// Where log lines end: stderr, which nobody may be reading. In: log messages. Out: lines, as far as there is
// room for them.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

namespace pinfeed {

// Purpose: writes to a descriptor and never waits for its reader: a line for which there is no room is lost,
// and the next one that fits is preceded by how many were. Borrows: the descriptor. Threads: any (spdlog's
// mutex). Errors: none are reported, there is nowhere to.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit StderrSink(int fd) : fd_(fd) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  // Whether all of it was written.
  bool Write(std::string_view text) const;

  const int fd_;
  uint64_t lost_ = 0;
};

}  // namespace pinfeed
