// SPDX-License-Identifier: Apache-2.0
// The messages are those of sd_notify(3).
#include "server/daemon/service_notify.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/base/log.h"
#include "common/base/quote.h"
#include "common/os/foreign_fds.h"
#include "common/os/poll_timeout.h"
#include "server/daemon/service_environment.h"

namespace pinfeed {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// No startup step takes this long between two messages. The longest registers 64 GiB with the driver.
constexpr seconds kStepLimit(120);
constexpr seconds kRefuseDuration(1);
constexpr milliseconds kSendTimeout(1000);

int64_t SteadySeconds() {
  return std::chrono::duration_cast<seconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string Extend(microseconds by) {
  return "EXTEND_TIMEOUT_USEC=" + std::to_string(by.count()) + "\n";
}

// Sends a message like sd_notify(3), but with a timeout: sd_notify blocks forever if the manager does not
// read. Returns an errno.
int SendBounded(const char* address, const std::string& lines, milliseconds timeout) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const std::string_view name(address == nullptr ? "" : address);
  if ((!name.starts_with('/') && !name.starts_with('@')) || name.size() >= sizeof(to.sun_path)) return EINVAL;
  std::memcpy(to.sun_path, name.data(), name.size());
  if (name.starts_with('@')) to.sun_path[0] = '\0';  // abstract socket
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + (name.starts_with('/') ? 1 : 0));
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), length) != 0) return errno;
  pollfd wait{fd.get(), POLLOUT, 0};
  if (::poll(&wait, 1, static_cast<int>(timeout.count())) < 0 && errno != EINTR) return errno;
  const ssize_t sent = ::send(fd.get(), lines.data(), lines.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(lines.size()) ? 0 : errno;
}

// A status must be a single line.
std::string StatusLine(std::string status) {
  std::replace(status.begin(), status.end(), '\n', ' ');
  return "STATUS=" + status + "\n";
}

}  // namespace

Status ServiceNotify::Open(bool notify) {
  notify_ = notify && std::getenv("NOTIFY_SOCKET") != nullptr;
  if (const microseconds interval = WatchdogInterval(); notify_ && interval.count() > 0) {
    // Half of the interval, as sd_watchdog_enabled(3) advises.
    watchdog_interval_ = std::chrono::ceil<milliseconds>(std::max(interval / 2, microseconds(1)));
  }
  ASSIGN_OR_RETURN(auto passed, TakePassedSockets());
  Status fault;
  for (auto& [name, fd] : passed) {
    const bool taken = std::any_of(sockets_.begin(), sockets_.end(),
                                   [&wanted = name](const auto& socket) { return socket.first == wanted; });
    if (name != kControlSocket && name != kLifelineSocket) {
      fault = InvalidArgument("the service manager passed a socket named " + QuotePath(name) +
                              "; socket units need FileDescriptorName=control or lifeline");
    } else if (taken) {
      fault = InvalidArgument("the service manager passed two sockets named " + QuotePath(name));
    }
    if (UniqueFd duplicate(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); duplicate)
      duplicates_.push_back(std::move(duplicate));
    sockets_.emplace_back(std::move(name), std::move(fd));
  }
  return fault;
}

bool ServiceNotify::HasSocket(std::string_view name) const {
  return std::any_of(sockets_.begin(), sockets_.end(),
                     [&](const auto& socket) { return socket.first == name && socket.second; });
}

UniqueFd ServiceNotify::TakeSocket(std::string_view name) {
  for (auto& [known, fd] : sockets_) {
    if (known == name) return std::move(fd);
  }
  return {};
}

void ServiceNotify::Starting(const char* step, const std::string& detail) {
  if (!notify_) return;
  const int64_t now = SteadySeconds();
  const bool same_step = step_.exchange(step) == step;
  if (step_sent_s_.exchange(now) == now && same_step) return;
  Send(StatusLine(step + detail) + Extend(kStepLimit));
}

void ServiceNotify::Ready(const std::string& status) {
  duplicates_.clear();
  Send("READY=1\n" + StatusLine(status));
}

void ServiceNotify::Reloading() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  Send("RELOADING=1\nMONOTONIC_USEC=" +
       std::to_string(std::chrono::duration_cast<microseconds>(now).count()) + "\n");
}

void ServiceNotify::Stopping(const std::string& status, std::chrono::milliseconds timeout) {
  Send("STOPPING=1\n" + StatusLine(status) + Extend(timeout));
}

void ServiceNotify::FeedWatchdog() {
  Send("WATCHDOG=1\n");
}

void ServiceNotify::ShowStatus(const std::string& status) {
  Send(StatusLine(status));
}

void ServiceNotify::RefuseClients() {
  using Clock = std::chrono::steady_clock;
  std::vector<pollfd> waits;
  for (const UniqueFd& fd : duplicates_) {
    const int flags = ::fcntl(fd.get(), F_GETFL);
    if (flags >= 0 && ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) == 0)
      waits.push_back({fd.get(), POLLIN, 0});
  }
  const Clock::time_point end = Clock::now() + kRefuseDuration;
  while (!waits.empty()) {
    if (Clock::now() >= end || ::poll(waits.data(), waits.size(), PollTimeout(end)) < 0) return;
    for (pollfd& wait : waits) {
      if (wait.revents == 0) continue;
      const UniqueConnection client(::accept4(wait.fd, nullptr, nullptr, SOCK_CLOEXEC));
      if (!client && errno != EAGAIN && errno != ECONNABORTED) wait.fd = -1;  // not a listening socket
    }
  }
}

void ServiceNotify::Send(const std::string& lines) {
  if (!notify_) return;
  // After the first failure, sends without waiting.
  const int error =
      SendBounded(std::getenv("NOTIFY_SOCKET"), lines, warned_ ? milliseconds(0) : kSendTimeout);
  if (error != 0 && !warned_.exchange(true)) {
    spdlog::warn("cannot notify the service manager ($NOTIFY_SOCKET): {}{}", std::strerror(error),
                 error == EAGAIN ? "; it does not read its socket" : "");
  }
}

}  // namespace pinfeed
