// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/decoded_link.h"

#include <poll.h>

#include <cerrno>
#include <span>
#include <utility>

#include "common/os/socket_message.h"

namespace pinfeed {

Result<std::unique_ptr<DecodedLink>> DecodedLink::Create(UniqueLink socket, int lifeline, uint64_t bytes) {
  ASSIGN_OR_RETURN(WakeEvent stop, WakeEvent::Create());
  return std::unique_ptr<DecodedLink>(new DecodedLink(std::move(socket), lifeline, std::move(stop), bytes));
}

Status DecodedLink::AwaitMessage() {
  std::array<pollfd, 3> entries{
      {{socket_.get(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}, {lifeline_, POLLRDHUP, 0}}};
  while (::poll(entries.data(), entries.size(), -1) < 0)
    if (errno != EINTR) return ErrnoStatus("wait for the process that decodes", errno);
  if (entries[1].revents != 0) return {Code::kCancelled, "the session ends"};
  daemon_is_gone_ = entries[2].revents != 0;
  // A message that has come counts first.
  if (entries[0].revents == 0) return Unavailable("the daemon, which watches over it, is gone");
  return OkStatus();
}

Result<DecodeRing::Failures> DecodedLink::Fetch(const DecodeRing::Unit& unit) {
  const auto entry = static_cast<uint32_t>(unit.batch.sequence % DecodeRing::kEntries);
  const DecodedRequest request = RequestFor(unit.batch, entry, bytes_);
  UniqueFd memory;
  if (!std::exchange(exported_[entry], true)) {
    ASSIGN_OR_RETURN(memory, unit.memory->Export());
  }
  RETURN_IF_ERROR(
      SendDecodedFrame(socket_.get(), std::as_bytes(std::span(&request, 1)), memory ? memory.get() : -1));
  buffer_.resize(MaxReplyBytes(request.samples));
  while (true) {
    RETURN_IF_ERROR(AwaitMessage());
    const SocketMessage message = ReceiveSocketMessage(socket_.get(), buffer_);
    if (message.error == EAGAIN) continue;
    if (message.is_end() || message.error == ECONNRESET) return Unavailable("the other process has ended it");
    if (message.error != 0) return ErrnoStatus("receive from the other process", message.error);
    return ParseReply(message, buffer_, request);
  }
}

}  // namespace pinfeed
