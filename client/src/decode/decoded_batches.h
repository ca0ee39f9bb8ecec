// SPDX-License-Identifier: Apache-2.0
// Decodes the images of a session's batches ahead of the trainer, on its GPU. In: slots in host memory. Out:
// batches in device memory, from which the trainer's tensors are written.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/base/unix_socket.h"
#include "client/src/decode/decode_engine.h"
#include "client/src/decode/decode_ring.h"
#include "client/src/decode/decoded_link.h"
#include "client/src/decode/decoded_readers.h"
#include "client/src/gpu/output_memory.h"
#include "client/src/link/lifeline.h"
#include "client/src/memory/publish_reader.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: reads published batches that are not taken yet, which the daemon lends to this session until they
// are released, and decodes them in order into a ring of device memory. Where another member of a broadcast
// decodes on the same GPU, it fetches them from that one instead (it is a reader), as long as their link
// lasts. Owns: decode threads, their decoders, the ring, the link, its own readers. Borrows: the arena, the
// publish page and the lifeline, until Stop returned OK. Threads: Write, Discard and OutcomeOf from any; the
// rest from the feed's thread. The decode threads call nothing of the user's but the log function, and block
// all signals. Errors: an image that cannot be decoded is zeroed or fails its batch, as the offer says; an
// error of the GPU fails all batches that are not decoded yet. Invariants: 1. a ring entry is decoded into
// only once the host has seen that the GPU has executed its last reader; 2. what another process may write to
// is copied before it is checked and used.
class DecodedBatches {
 public:
  // The batches that can be taken and not written at a time.
  static constexpr uint32_t kRing = DecodeRing::kEntries;

  // `lifeline`: brings the readers, until Stop. `link`: the socket to the member that decodes; empty: none.
  static Result<std::unique_ptr<DecodedBatches>> Start(const FeedOffer& offer, const PublishReader& reader,
                                                       const std::byte* arena,
                                                       const std::shared_ptr<DecodeEngine>& engine,
                                                       Lifeline& lifeline, UniqueFd link);
  // Precondition: Stop returned OK.
  ~DecodedBatches();

  // Whether the batch with this number is decoded, or never will be.
  bool IsDecoded(uint64_t sequence) const { return ring_->IsDecoded(sequence); }
  // Waits until it is, or for some time.
  void AwaitDecoded(uint64_t sequence, std::chrono::nanoseconds at_most) const;
  // Of a decoded batch that is not written. An error says why it cannot be given to the trainer.
  Result<DecodeRing::Outcome> OutcomeOf(uint64_t sequence) const { return ring_->OutcomeOf(sequence); }

  // Queues the writing of the outputs on `stream`. Afterwards the slot can be released. Waits for a batch
  // that is not decoded yet, at most kLongestDecode. On an error the batch can be written again.
  Status Write(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream);
  // Frees the entry of a batch that is released without being written.
  void Discard(uint64_t sequence) { ring_->Discard(sequence); }

  // Ends the threads and frees the ring once the GPU has executed what was written. kDeadlineExceeded: it
  // still decodes or reads at `deadline`; the object must then be left to the process's end.
  Status Stop(SteadyTime deadline);

  static constexpr std::chrono::seconds kLongestDecode{60};

 private:
  class Thread;
  explicit DecodedBatches(std::unique_ptr<DecodeRing> ring);
  // Allocates the ring, for a reader if there can be one: its link is then in link_.
  Status Allocate(DecodeEngine& engine, UniqueLink link, const Lifeline& lifeline);
  // Starts the threads from `first` on. Throws std::system_error.
  void StartThreads(size_t first);

  const std::unique_ptr<DecodeRing> ring_;
  std::unique_ptr<DecodedLink> link_;     // null: this process decodes
  std::unique_ptr<DecodedMemory> spare_;  // of a reader, for the batch with which it begins to decode
  std::unique_ptr<DecodedReaders> readers_;
  std::vector<std::unique_ptr<Thread>> threads_;  // of a reader only the first one has started
};

}  // namespace pinfeed
