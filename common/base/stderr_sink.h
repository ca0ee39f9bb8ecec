// SPDX-License-Identifier: Apache-2.0
// Writes log lines to stderr without ever blocking. In: log messages. Out: lines, as far as the descriptor
// accepts them.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <mutex>
#include <string_view>

#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: writes to a descriptor without waiting for its reader. A line for which there is no room
// is dropped, or cut if it is longer than PIPE_BUF or a disk is full. The next line that fits is preceded by
// the number of dropped lines. Borrows: the descriptor. Threads: any (spdlog's mutex). Errors: none, because
// there is nowhere to report them.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit StderrSink(int fd);

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  // Returns how many characters of the text were written.
  size_t Write(std::string_view text) const;

  const UniqueFd own_;  // the same terminal or pipe, opened for this process alone, without blocking
  const int fd_;
  uint64_t lost_ = 0;
  bool cut_ = false;  // the latest line has no end
};

}  // namespace pinfeed
