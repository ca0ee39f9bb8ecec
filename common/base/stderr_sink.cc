// SPDX-License-Identifier: Apache-2.0
#include "common/base/stderr_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace pinfeed {
namespace {

// The descriptor is shared with other processes, so it cannot be made non-blocking. Writing to a terminal
// that is not read, or to a pipe that others fill, may wait although poll() has found room.
UniqueFd OpenWithoutBlocking(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || (!S_ISFIFO(info.st_mode) && ::isatty(fd) == 0)) return {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

StderrSink::StderrSink(int fd) : own_(OpenWithoutBlocking(fd)), fd_(own_ ? own_.get() : fd) {}

void StderrSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  if (cut_) line.push_back('\n');
  if (lost_ > 0) {
    const std::string text = std::to_string(lost_) +
                             " log lines were lost because stderr was not read in time, or the disk is full";
    formatter_->format(spdlog::details::log_msg(message.logger_name, spdlog::level::warn, text), line);
  }
  formatter_->format(message, line);
  const size_t written = Write({line.data(), line.size()});
  if (written == line.size()) {
    lost_ = 0;
    cut_ = false;
  } else {
    ++lost_;
    cut_ = written > 0 || cut_;
  }
}

// A pipe reported as writable accepts at least PIPE_BUF bytes (pipe(7)).
size_t StderrSink::Write(std::string_view text) const {
  size_t done = 0;
  while (done < text.size()) {
    pollfd ready{fd_, POLLOUT, 0};
    const int count = ::poll(&ready, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || (ready.revents & POLLOUT) == 0) break;
    const ssize_t written = ::write(fd_, text.data() + done, std::min<size_t>(text.size() - done, PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  return done;
}

}  // namespace pinfeed
