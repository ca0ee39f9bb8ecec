// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/decoded_frame.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "common/base/quote.h"

namespace pinfeed {
namespace {

Status NotOfTheProtocol(const std::string& why) {
  return Internal("the other process sent " + why);
}

Status CheckHead(uint64_t magic, uint32_t version) {
  if (magic != kDecodedMagic) return NotOfTheProtocol("a frame of another protocol");
  if (version == kDecodedVersion) return OkStatus();
  return NotOfTheProtocol("a frame of version " + std::to_string(version) + ", and this one has version " +
                          std::to_string(kDecodedVersion) + "; libpinfeed is of another version there");
}

}  // namespace

void LinkTraits::Close(int fd) noexcept {
  ::shutdown(fd, SHUT_RDWR);
  FdTraits::Close(fd);
}

DecodedRequest RequestFor(const BatchDescriptor& batch, uint32_t entry, uint64_t bytes) {
  return {kDecodedMagic, kDecodedVersion, entry, batch.epoch, batch.batch_index, bytes, batch.samples, 0};
}

DecodeRing::Place PlaceOf(const DecodedRequest& request) {
  return {request.epoch, request.batch_index};
}

Status CheckRequest(const SocketMessage& message, const DecodedRequest& request,
                    const DecodedLayout& layout) {
  if (message.fds_lost)
    return ResourceExhausted("a descriptor was lost: this process is at its limit of open files (ulimit -n)");
  if (message.bytes != sizeof request || message.truncated)
    return NotOfTheProtocol("a request of " + std::to_string(message.bytes) + " bytes");
  RETURN_IF_ERROR(CheckHead(request.magic, request.version));
  if (message.fds.size() > 1)
    return NotOfTheProtocol(std::to_string(message.fds.size()) + " descriptors at once");
  if (request.entry >= DecodeRing::kEntries)
    return NotOfTheProtocol("the number " + std::to_string(request.entry) + " of its memory");
  if (request.samples > layout.offer().layout.batch_size || request.bytes != layout.bytes()) {
    return NotOfTheProtocol("a request for a batch of " + std::to_string(request.samples) + " samples in " +
                            std::to_string(request.bytes) + " bytes, which is none of this feed");
  }
  return OkStatus();
}

size_t MaxReplyBytes(uint32_t samples) {
  return sizeof(DecodedReply) + (samples + size_t{7}) / 8;
}

std::vector<std::byte> PackReply(const DecodedRequest& request, const DecodeRing::Failures& failures) {
  DecodedReply reply{};
  reply.magic = kDecodedMagic;
  reply.version = kDecodedVersion;
  reply.samples = request.samples;
  reply.epoch = request.epoch;
  reply.batch_index = request.batch_index;
  reply.failed = static_cast<uint32_t>(failures.size());
  if (!failures.empty()) {
    const Status& first = failures.begin()->second;
    reply.code = static_cast<uint32_t>(first.code());
    reply.native_error = first.native_error();
    std::copy_n(first.message().data(), std::min(first.message().size(), sizeof reply.text - 1), reply.text);
  }
  std::vector<std::byte> packed(failures.empty() ? sizeof reply : MaxReplyBytes(request.samples));
  std::memcpy(packed.data(), &reply, sizeof reply);
  for (const auto& [sample, why] : failures)
    packed[sizeof reply + sample / 8] |= std::byte{1} << static_cast<int>(sample % 8);
  return packed;
}

Result<DecodeRing::Failures> ParseReply(const SocketMessage& message, std::span<const std::byte> buffer,
                                        const DecodedRequest& request) {
  if (message.has_fds()) return NotOfTheProtocol("a descriptor");
  DecodedReply reply{};
  const size_t most = MaxReplyBytes(request.samples);
  if (message.truncated || (message.bytes != sizeof reply && message.bytes != most) || buffer.size() < most)
    return NotOfTheProtocol("an answer of " + std::to_string(message.bytes) + " bytes");
  std::memcpy(&reply, buffer.data(), sizeof reply);
  RETURN_IF_ERROR(CheckHead(reply.magic, reply.version));
  if (reply.epoch != request.epoch || reply.batch_index != request.batch_index ||
      reply.samples != request.samples)
    return NotOfTheProtocol("the answer to another request");
  const bool failed = reply.failed > 0;
  if ((failed ? !IsErrorCode(reply.code) : reply.code != 0) ||
      (failed ? most : sizeof reply) != message.bytes)
    return NotOfTheProtocol("an answer with a wrong result");
  DecodeRing::Failures failures;
  const std::string text(reply.text, ::strnlen(reply.text, sizeof reply.text));
  const Status why = failed
                         ? Status(static_cast<Code>(reply.code), EscapeUnprintable(text), reply.native_error)
                         : OkStatus();
  for (size_t sample = 0; sample < 8 * (message.bytes - sizeof reply); ++sample) {
    const std::byte bits = buffer[sizeof reply + sample / 8];
    if ((bits >> static_cast<int>(sample % 8) & std::byte{1}) == std::byte{0}) continue;
    if (sample >= reply.samples) return NotOfTheProtocol("a failure of a sample that the batch has not");
    failures.emplace(static_cast<uint32_t>(sample), why);
  }
  if (failures.size() != reply.failed) return NotOfTheProtocol("another number of failures than it says");
  return failures;
}

Status SendDecodedFrame(int socket, std::span<const std::byte> frame, int fd) {
  const std::span<const int> fds = fd >= 0 ? std::span(&fd, 1) : std::span<const int>();
  const int error = SendSocketMessage(socket, frame, fds);
  if (error == 0) return OkStatus();
  if (error == EPIPE || error == ECONNRESET) return Unavailable("the other process has ended it");
  return ErrnoStatus("send to the other process", error);
}

}  // namespace pinfeed
