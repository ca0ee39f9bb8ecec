// SPDX-License-Identifier: Apache-2.0
#include "client/src/link/lifeline.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

#include "common/os/poll_timeout.h"
#include "common/os/socket_message.h"

namespace pinfeed {
namespace {

Status Broken(const std::string& path, const std::string& what) {
  return Internal("the lifeline " + path + " broke the protocol: " + what +
                  "; are pinfeedd and libpinfeed of the same version?");
}

Status HasEnded() {
  return {Code::kOutOfRange, "the feed was closed, or the daemon ended"};
}

// Waits until the socket has one of `events`, or has hung up.
Status WaitFor(int fd, short events, const std::optional<SteadyTime>& deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, deadline ? PollTimeout(*deadline) : -1);
    if (ready > 0) return OkStatus();
    if (ready == 0) return {Code::kDeadlineExceeded, "the daemon was not ready in time"};
    if (errno != EINTR) return ErrnoStatus("wait for the daemon on a lifeline", errno);
  }
}

Result<std::vector<UniqueFd>> ReceiveWelcome(int fd, const std::string& path, size_t fd_count,
                                             SteadyTime deadline, bool and_link) {
  const Status ready = WaitFor(fd, POLLIN, deadline);
  if (ready.code() == Code::kDeadlineExceeded)
    return Status(ready.code(), "the daemon did not answer on the lifeline " + path + " in time");
  RETURN_IF_ERROR(ready);
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
    return Status(ErrorCodeOf(frame.code), "the daemon refused the lifeline: " + text);
  }
  if (message.fds_lost) {
    return ResourceExhausted(
        "receive the daemon's descriptors: not all arrived; this process may be at its limit of open files "
        "(ulimit -n)");
  }
  if (message.fds.size() != fd_count && !(and_link && message.fds.size() == fd_count + 1)) {
    return Broken(path, std::to_string(message.fds.size()) + " descriptors were received, expected " +
                            std::to_string(fd_count));
  }
  return std::move(message.fds);
}

}  // namespace

LifelineFrame FirstFrame(LifelineKind kind, const std::array<uint8_t, kTokenBytes>& token) {
  LifelineFrame frame = MakeLifelineFrame(kind);
  std::ranges::copy(token, frame.token);
  return frame;
}

Result<Lifeline> Lifeline::Attach(const std::string& path, const LifelineFrame& first, size_t fd_count,
                                  SteadyTime deadline, std::vector<UniqueFd>* fds, bool and_link) {
  ASSIGN_OR_RETURN(UniqueFd socket, ConnectUnix(path, SOCK_SEQPACKET, deadline));
  // The first frame always fits a new socket's buffer.
  const int error = SendSocketMessage(socket.get(), std::as_bytes(std::span(&first, 1)), {});
  if (error != 0) return ErrnoStatus("send the token on the lifeline " + path, error);
  Result<std::vector<UniqueFd>> welcome = ReceiveWelcome(socket.get(), path, fd_count, deadline, and_link);
  Lifeline lifeline(std::move(socket));
  if (!welcome.ok()) {
    if (first.kind != static_cast<uint32_t>(LifelineKind::kHello)) return welcome.status();
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
  const LifelineFrame frame = MakeLifelineFrame(kind);
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
  return WaitFor(socket_.get(), POLLRDHUP, deadline).ok();
}

Result<LifelineFrame> Lifeline::Receive(const Deadline& deadline, UniqueFd* memory) {
  for (;;) {
    RETURN_IF_ERROR(WaitFor(socket_.get(), POLLIN, deadline.at));
    LifelineFrame frame{};
    SocketMessage message = ReceiveSocketMessage(socket_.get(), std::as_writable_bytes(std::span(&frame, 1)));
    if (message.error == EAGAIN) continue;
    if (message.is_end() || message.error == ECONNRESET) return HasEnded();
    if (message.error != 0) return ErrnoStatus("receive a frame from the daemon", message.error);
    const bool is_memory = frame.kind == static_cast<uint32_t>(LifelineKind::kMemory) && frame.code == 0;
    if (message.bytes != sizeof(frame) || message.truncated || message.has_fds() != is_memory ||
        message.fds.size() > 1 || frame.magic != kLifelineMagic)
      return Internal(
          "the daemon sent a frame of another protocol; are pinfeedd and libpinfeed of the same version?");
    if (is_memory && !message.fds.empty()) *memory = std::move(message.fds.front());
    return frame;
  }
}

Result<std::optional<ReaderInvitation>> Lifeline::ReceiveReader() {
  while (true) {
    LifelineFrame frame{};
    SocketMessage message = ReceiveSocketMessage(socket_.get(), std::as_writable_bytes(std::span(&frame, 1)));
    if (message.error != 0 || message.is_end()) return std::nullopt;
    if (message.bytes != sizeof(frame) || message.truncated || frame.magic != kLifelineMagic)
      return Internal("the daemon sent a frame of another protocol");
    if (frame.kind != static_cast<uint32_t>(LifelineKind::kReader)) continue;
    if (message.fds_lost) return ResourceExhausted("this process is at its limit of open files (ulimit -n)");
    if (message.fds.size() != 1) return Internal("the daemon sent a reader without its descriptor");
    return ReaderInvitation{std::move(message.fds.front()), frame.reader.epoch, frame.reader.batch_index};
  }
}

Status Lifeline::Send(const LifelineFrame& frame, SteadyTime deadline) {
  for (;;) {
    if (::send(socket_.get(), &frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(frame))
      return OkStatus();
    if (errno == EPIPE || errno == ECONNRESET) return HasEnded();
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return ErrnoStatus("send a frame to the daemon", errno);
    RETURN_IF_ERROR(WaitFor(socket_.get(), POLLOUT, deadline));
  }
}

}  // namespace pinfeed
