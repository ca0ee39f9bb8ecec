// SPDX-License-Identifier: Apache-2.0
// What two members of a broadcast on one GPU tell each other: one decodes, the other (its reader) fetches its
// batches. Between processes of libpinfeed only, over a SOCK_SEQPACKET pair that the daemon made. A request
// brings a descriptor of the reader's memory where the batch is to go, the first time that memory is used.
// The answer comes once the batch is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/src/decode/decode_ring.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/os/socket_message.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

inline constexpr uint64_t kDecodedMagic = 0x3130444446504650;  // "PFPFDD01" read as little-endian bytes
// Changes with the frames, and with the layout of a decoded batch (DecodedLayout). Others are refused.
inline constexpr uint32_t kDecodedVersion = 1;

// One end of a link. Closing it ends the link, although the daemon or a forked child has a duplicate.
struct LinkTraits : FdTraits {
  static void Close(int fd) noexcept;
};
using UniqueLink = UniqueHandle<LinkTraits>;

// Reader -> decoder, one at a time, each for a later batch.
struct DecodedRequest {
  uint64_t magic;
  uint32_t version;
  uint32_t entry;  // of the reader's ring
  uint64_t epoch;
  uint64_t batch_index;
  uint64_t bytes;  // of a decoded batch
  uint32_t samples;
  uint32_t reserved;
};
static_assert(sizeof(DecodedRequest) == 48);

// Decoder -> reader. If images could not be decoded, a bit for each sample follows: 1 if its image was not.
struct DecodedReply {
  uint64_t magic;
  uint32_t version;
  uint32_t samples;
  uint64_t epoch;
  uint64_t batch_index;
  uint32_t failed;       // images that could not be decoded
  uint32_t code;         // why the first of them failed, a Code; 0: none did
  int32_t native_error;  // the driver's number for that; 0: it has none
  uint32_t reserved;
  char text[464];  // why it failed, for people: UTF-8, NUL-padded
};
static_assert(sizeof(DecodedReply) == 512);

// Of a batch in `entry` of the reader's ring. / The place of the batch.
DecodedRequest RequestFor(const BatchDescriptor& batch, uint32_t entry, uint64_t bytes);
DecodeRing::Place PlaceOf(const DecodedRequest& request);

// OK if the message, of which `request` is the buffer, is a request of a reader of the same feed. Otherwise
// kInternal says why not.
Status CheckRequest(const SocketMessage& message, const DecodedRequest& request, const DecodedLayout& layout);

// The answer, ready to be sent.
std::vector<std::byte> PackReply(const DecodedRequest& request, const DecodeRing::Failures& failures);
// The most bytes of it.
size_t MaxReplyBytes(uint32_t samples);
// Returns the images that could not be decoded; kInternal says why the message in `buffer` is no answer.
Result<DecodeRing::Failures> ParseReply(const SocketMessage& message, std::span<const std::byte> buffer,
                                        const DecodedRequest& request);

// Sends a frame with at most one descriptor (-1: none). Never blocks: a full socket is an error.
Status SendDecodedFrame(int socket, std::span<const std::byte> frame, int fd);

}  // namespace pinfeed
