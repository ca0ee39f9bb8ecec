// SPDX-License-Identifier: Apache-2.0
#include "server/session/lifeline_frame.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "common/base/quote.h"
#include "common/os/foreign_fds.h"
#include "common/os/socket_message.h"

namespace pinfeed {
namespace {

std::string FaultOf(const LifelineFrame& frame, const SocketMessage& message,
                    std::span<const LifelineKind> expected) {
  if (message.has_fds()) return "a frame with descriptors, which only the daemon sends";
  if (message.truncated) return "a frame of more than " + std::to_string(sizeof frame) + " bytes";
  if (message.bytes != sizeof frame)
    return "a frame of " + std::to_string(message.bytes) + " bytes instead of " +
           std::to_string(sizeof frame);
  if (frame.magic != kLifelineMagic) return "a frame without the protocol's magic number";
  const auto is_it = [&](LifelineKind kind) { return frame.kind == static_cast<uint32_t>(kind); };
  if (std::none_of(expected.begin(), expected.end(), is_it))
    return "a frame of kind " + std::to_string(frame.kind) + ", which is not expected now";
  return {};
}

Status Send(int fd, const LifelineFrame& frame, std::span<const int> fds) {
  PF_CHECK(fds.size() <= kLifelineFdsResident, "a session has at most five descriptors");
  const int error = SendSocketMessage(fd, std::as_bytes(std::span(&frame, 1)), fds);
  return error == 0 ? OkStatus() : ErrnoStatus("send a frame to a client", error);
}

LifelineFrame AnswerFrame(LifelineKind kind, const Status& status) {
  LifelineFrame frame = MakeLifelineFrame(kind);
  frame.code = static_cast<uint32_t>(status.code());
  if (!status.ok()) {
    const std::string& text = status.message();
    std::copy_n(text.data(), std::min(text.size(), sizeof frame.text - 1), frame.text);
  }
  return frame;
}

}  // namespace

ReceivedFrame ReceiveFrame(int fd, std::span<const LifelineKind> expected) {
  ReceivedFrame out;
  SocketMessage message = ReceiveSocketMessage(fd, std::as_writable_bytes(std::span(&out.frame, 1)));
  if (message.error != 0) {
    out.kind = message.error == EAGAIN || message.error == EWOULDBLOCK ? ReceivedFrame::Kind::kNothing
                                                                       : ReceivedFrame::Kind::kHangUp;
    return out;
  }
  // The end of the connection, or an empty packet, which counts as the end.
  if (message.bytes == 0 && message.fds.empty()) {
    out.kind = ReceivedFrame::Kind::kHangUp;
    return out;
  }
  out.fault = FaultOf(out.frame, message, expected);
  for (UniqueFd& foreign : message.fds) CloseApart(std::move(foreign));
  out.kind = out.fault.empty() ? ReceivedFrame::Kind::kFrame : ReceivedFrame::Kind::kBad;
  return out;
}

Status ResultOf(const LifelineFrame& done) {
  if (done.code == 0) return OkStatus();
  const Code code = ErrorCodeOf(done.code);
  // It would tell the trainer that no batch was ready in time.
  return {code == Code::kDeadlineExceeded ? Code::kUnknown : code,
          EscapeUnprintable(std::string_view(done.text, ::strnlen(done.text, sizeof done.text)))};
}

Status SendTask(int fd, const ProducerTask& task) {
  LifelineFrame frame = MakeLifelineFrame(LifelineKind::kTask);
  frame.produce = task;
  return Send(fd, frame, {});
}

Status SendAnswered(int fd, const BatcherMessage& message, const Status& result) {
  LifelineFrame frame = AnswerFrame(LifelineKind::kAnswered, result);
  frame.batcher = message;
  return Send(fd, frame, {});
}

Status SendMemory(int fd, const MemoryRequest& request, const Result<UniqueFd>& memory) {
  LifelineFrame frame = AnswerFrame(LifelineKind::kMemory, memory.status());
  frame.memory = request;
  if (!memory.ok()) return Send(fd, frame, {});
  const std::array<int, 1> fds = {memory->get()};
  return Send(fd, frame, fds);
}

Status SendReader(int fd, const ReaderStart& start, int reader) {
  // Descriptors that were sent and not received count towards a limit of the daemon's user.
  constexpr int kMaxUnread = 16 << 10;
  int unread = 0;  // bytes, with what the kernel adds to each frame
  if (::ioctl(fd, SIOCOUTQ, &unread) != 0) return ErrnoStatus("look at a lifeline", errno);
  if (unread > kMaxUnread) return Unavailable("its lifeline is full of others");
  LifelineFrame frame = MakeLifelineFrame(LifelineKind::kReader);
  frame.reader = start;
  const std::array<int, 1> fds = {reader};
  return Send(fd, frame, fds);
}

Status SendWelcome(int fd, std::span<const int> fds) {
  LifelineFrame frame = AnswerFrame(LifelineKind::kWelcome, OkStatus());
  return Send(fd, frame, fds);
}

void SendRefusal(int fd, const Status& error) {
  LifelineFrame frame = AnswerFrame(LifelineKind::kWelcome, error);
  [[maybe_unused]] const Status sent = Send(fd, frame, {});
}

}  // namespace pinfeed
