// SPDX-License-Identifier: Apache-2.0
#include "server/session/lifeline_frame.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace pinfeed {
namespace {

constexpr size_t kMaxFdsOfAMessage = 253;  // SCM_MAX_FD: the kernel's limit, so that none can be left behind

// The kernel has put these into our table whether we asked or not.
size_t CloseDescriptors(msghdr& message) {
  size_t count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      ::close(fd);
    }
    count += fds;
  }
  return count;
}

std::string FaultOf(const LifelineFrame& frame, size_t bytes, int flags, size_t fds, LifelineKind expected) {
  if (fds != 0 || (flags & MSG_CTRUNC) != 0) return "a frame with descriptors, which only the daemon sends";
  if ((flags & MSG_TRUNC) != 0) return "a frame of more than " + std::to_string(sizeof frame) + " bytes";
  if (bytes != sizeof frame)
    return "a frame of " + std::to_string(bytes) + " bytes instead of " + std::to_string(sizeof frame);
  if (frame.magic != kLifelineMagic) return "a frame without the protocol's magic number";
  if (frame.kind != static_cast<uint32_t>(expected))
    return "a frame of kind " + std::to_string(frame.kind) + ", which is not expected now";
  return {};
}

Status Send(int fd, LifelineFrame& frame, std::span<const int> fds) {
  iovec data{&frame, sizeof frame};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kLifelineFdsHost)> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    PF_CHECK(fds.size() <= kLifelineFdsHost, "a session has at most four descriptors");
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent != static_cast<ssize_t>(sizeof frame)) return ErrnoStatus("send the welcome to a client", errno);
  return OkStatus();
}

LifelineFrame WelcomeFrame(const Status& status) {
  LifelineFrame frame{};
  frame.magic = kLifelineMagic;
  frame.kind = static_cast<uint32_t>(LifelineKind::kWelcome);
  frame.code = static_cast<uint32_t>(status.code());
  if (!status.ok()) {
    const std::string& text = status.message();
    std::copy_n(text.data(), std::min(text.size(), sizeof frame.text - 1), frame.text);
  }
  return frame;
}

}  // namespace

ReceivedFrame ReceiveFrame(int fd, LifelineKind expected) {
  ReceivedFrame out;
  iovec data{&out.frame, sizeof out.frame};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFdsOfAMessage)> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t bytes = 0;
  do {
    bytes = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);
  if (bytes < 0) {
    out.kind = errno == EAGAIN || errno == EWOULDBLOCK ? ReceivedFrame::Kind::kNothing
                                                       : ReceivedFrame::Kind::kHangUp;
    return out;
  }
  const size_t fds = CloseDescriptors(message);
  if (bytes == 0 && fds == 0) {  // the end; or an empty packet, which nobody sends who wants to go on
    out.kind = ReceivedFrame::Kind::kHangUp;
    return out;
  }
  out.fault = FaultOf(out.frame, static_cast<size_t>(bytes), message.msg_flags, fds, expected);
  out.kind = out.fault.empty() ? ReceivedFrame::Kind::kFrame : ReceivedFrame::Kind::kBad;
  return out;
}

Status SendWelcome(int fd, std::span<const int> fds) {
  LifelineFrame frame = WelcomeFrame(OkStatus());
  return Send(fd, frame, fds);
}

void SendRefusal(int fd, const Status& error) {
  LifelineFrame frame = WelcomeFrame(error);
  [[maybe_unused]] const Status sent = Send(fd, frame, {});
}

}  // namespace pinfeed
