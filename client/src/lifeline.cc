// SPDX-License-Identifier: Apache-2.0
#include "client/src/lifeline.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "common/os/socket_message.h"

namespace pinfeed {
namespace {

Status Broken(const std::string& path, const std::string& what) {
  return Internal("the lifeline " + path + " broke the protocol: " + what +
                  "; are pinfeedd and libpinfeed of the same version?");
}

LifelineFrame MakeFrame(LifelineKind kind) {
  LifelineFrame frame{};
  frame.magic = kLifelineMagic;
  frame.kind = static_cast<uint32_t>(kind);
  return frame;
}

Status WaitReadable(int fd, const std::string& path, SteadyTime deadline) {
  pollfd entry{fd, POLLIN, 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, PollTimeout(deadline));
    if (ready > 0) return OkStatus();
    if (ready == 0)
      return {Code::kDeadlineExceeded, "the daemon did not answer on the lifeline " + path + " in time"};
    if (errno != EINTR) return ErrnoStatus("wait for an answer on the lifeline " + path, errno);
  }
}

Result<std::vector<UniqueFd>> ReceiveWelcome(int fd, const std::string& path, size_t fd_count,
                                             SteadyTime deadline) {
  RETURN_IF_ERROR(WaitReadable(fd, path, deadline));
  LifelineFrame frame{};
  SocketMessage message = ReceiveSocketMessage(fd, std::as_writable_bytes(std::span(&frame, 1)));
  if (message.error != 0) return ErrnoStatus("receive the welcome on the lifeline " + path, message.error);
  if (message.bytes == 0)
    return Unavailable("the daemon closed the lifeline " + path +
                       " without an answer; it is stopping, or waited too long for this process");
  if (message.bytes != sizeof(frame) || message.truncated)
    return Broken(path, "received a frame of wrong size");
  if (frame.magic != kLifelineMagic || frame.kind != static_cast<uint32_t>(LifelineKind::kWelcome))
    return Broken(path, "the answer is not a welcome");
  if (frame.code != 0) {
    const std::string text(frame.text, ::strnlen(frame.text, sizeof(frame.text)));
    const bool known = frame.code <= static_cast<uint32_t>(Code::kUnauthenticated);
    return Status(known ? static_cast<Code>(frame.code) : Code::kUnknown,
                  "the daemon refused the lifeline: " + text);
  }
  if (message.fds_lost) {
    return ResourceExhausted(
        "receive the session's descriptors: not all arrived; this process may be at its limit of open files "
        "(ulimit -n)");
  }
  if (message.fds.size() != fd_count) {
    return Broken(path, std::to_string(message.fds.size()) + " descriptors were received, expected " +
                            std::to_string(fd_count));
  }
  return std::move(message.fds);
}

}  // namespace

Result<Lifeline> Lifeline::Attach(const std::string& path, const std::array<uint8_t, kTokenBytes>& token,
                                  size_t fd_count, SteadyTime deadline, std::vector<UniqueFd>* fds) {
  ASSIGN_OR_RETURN(UniqueFd socket, ConnectUnix(path, SOCK_SEQPACKET, deadline));
  LifelineFrame hello = MakeFrame(LifelineKind::kHello);
  std::copy(token.begin(), token.end(), hello.token);
  // The first frame always fits a new socket's buffer, so the non-blocking send needs no retry.
  if (::send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    return ErrnoStatus("send the token on the lifeline " + path, errno);
  }
  Result<std::vector<UniqueFd>> welcome = ReceiveWelcome(socket.get(), path, fd_count, deadline);
  Lifeline lifeline(std::move(socket));
  if (!welcome.ok()) {
    // The daemon may consider this process attached. If it merely hung up, the daemon would not reclaim the
    // memory.
    lifeline.SayBye();
    lifeline.WaitForHangUp(deadline);
    return welcome.status();
  }
  *fds = *std::move(welcome);
  return lifeline;
}

bool Lifeline::HungUp() const {
  pollfd entry{socket_.get(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) != 0;
}

void Lifeline::Say(LifelineKind kind) {
  if (!socket_) return;
  const LifelineFrame frame = MakeFrame(kind);
  (void)::send(socket_.get(), &frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Lifeline::SayBye() {
  Say(LifelineKind::kBye);
}

void Lifeline::SayLeave() {
  Say(LifelineKind::kLeave);
}

void Lifeline::HangUp() {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

bool Lifeline::WaitForHangUp(SteadyTime deadline) const {
  pollfd entry{socket_.get(), POLLRDHUP, 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, PollTimeout(deadline));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace pinfeed
