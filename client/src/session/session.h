// SPDX-License-Identifier: Apache-2.0
// One attached session: its lifeline, its pages and its slots, from the attachment to the end. In: an offer.
#pragma once

#include <memory>

#include "client/src/base/fork_guard.h"
#include "client/src/decode/decoded_batches.h"
#include "client/src/gpu/output_memory.h"
#include "client/src/link/lifeline.h"
#include "client/src/link/offer.h"
#include "client/src/memory/session_memory.h"
#include "client/src/memory/session_pages.h"
#include "client/src/session/session_slots.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: keeps a session alive and ends it. Owns: lifeline, pages, slots, decode threads. The feed and each
// held batch share it, so that memory under a held batch never vanishes; the last owner unmaps and sends bye.
// On a GPU the last owner waits at most 10 s until the streams are done. Threads: End, HungUp and HangUp from
// the feed's thread; ReleaseOn and Write from any. Errors: those of the lifeline and the memory. Invariant: a
// bye is sent only once nothing is mapped.
class Session {
 public:
  // What of an offer does not work in this process, where another offer may.
  enum class Unusable : uint8_t { kNothing, kBackend, kDecoder, kResident };
  // Connects the lifeline, then maps and verifies everything; a device arena on the caller's GPU `ordinal`.
  // On an error nothing stays mapped, and the daemon reclaims its memory. Sets `unusable` to kBackend if
  // mapping or checking a device arena failed, to kResident if those of resident samples did, and to kDecoder
  // if there is too little memory to decode.
  // Precondition: the offer passed CheckOffer.
  // `engine`: decodes the images of such an offer (FeedOffer::Decoded); else it may be null.
  static Result<std::shared_ptr<Session>> Attach(FeedOffer offer, int ordinal,
                                                 const std::shared_ptr<DecodeEngine>& engine,
                                                 SteadyTime deadline, Unusable* unusable);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const FeedOffer& offer() const { return offer_; }
  const SessionPages& pages() const { return pages_; }
  SessionPages& pages() { return pages_; }
  const SessionSlots& slots() const { return slots_; }
  // Decodes the batches' images ahead of the trainer; null: the batches are complete as they are.
  const DecodedBatches* decoded() const { return decoded_.get(); }

  // Whether batches take a step of this process's before they can be taken, see HasNext.
  bool HasOwnStep() const { return decoded_ != nullptr || resident_ != nullptr; }
  // Whether the next batch can be taken: it is published, its images are decoded if that is done here, and
  // its tensors can be written without waiting for the GPU if the samples are resident.
  bool HasNext() const {
    return pages_.HasNext() && (decoded_ == nullptr || decoded_->IsDecoded(pages_.next())) &&
           (resident_ == nullptr || resident_->HasRoom(pages_.held()));
  }
  // Whether HasNext waits for the GPU to write earlier batches of resident samples.
  bool IsAheadOfGpu() const {
    return resident_ != nullptr && pages_.HasNext() && !resident_->HasRoom(pages_.held());
  }
  // Waits for that, at most so long. Precondition: IsAheadOfGpu().
  void AwaitGpu(std::chrono::nanoseconds at_most) { resident_->AwaitRoom(pages_.held(), at_most); }
  // SessionSlots::RowOffsets. Samples whose images could not be decoded have no rows.
  Status RowOffsets(const BatchDescriptor& batch, const OfferedOutput& output,
                    std::span<int64_t> offsets) const;

  // Returns the slot of a batch that is not written.
  void Release(const BatchDescriptor& batch);
  // SessionPages::GiveBack.
  Status GiveBack(const BatchDescriptor& batch) { return pages_.GiveBack(batch); }
  // Returns the slot in the order of `stream`; on the host, at once.
  Status ReleaseOn(const BatchDescriptor& batch, void* stream);
  // Writes the outputs (SessionSlots::CopyTo) and returns the slot: on a device in the order of `stream`, on
  // the host at once. On an error the slot is not returned.
  Status Write(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream);

  // Of a batch that was just taken: see SessionSlots::Pin. Not for images that are decoded here, nor for
  // lists of resident samples: their bytes are copied.
  void Pin(uint32_t slot) {
    if (decoded_ == nullptr && resident_ == nullptr) slots_.Pin(slot);
  }

  bool HungUp() const { return lifeline_.HungUp(); }
  // Tells a draining daemon not to wait for held batches, whose memory stays mapped here.
  void HangUp() { lifeline_.HangUp(); }
  // Takes no more batches. Without held batches, unmaps, sends bye, and waits at most 2 s until the daemon
  // has reclaimed the memory, so that the next session finds it free; on a GPU first at most 10 s until the
  // streams are done with it. The session is unusable afterwards. Otherwise leaves its group, if it has one,
  // and waits at most 2 s until the daemon confirms; held batches stay valid until released.
  void End();

 private:
  Session(FeedOffer offer, int ordinal, Lifeline lifeline, SessionMemory memory);
  // `link`: see DecodedBatches.
  Status StartDecoding(const std::shared_ptr<DecodeEngine>& engine, UniqueFd link);
  Status WriteOnHost(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream);
  // Unmaps all memory once the GPU no longer needs it. Returns false if the GPU still does at `deadline`, or
  // cannot say because its context is broken; the memory then stays mapped until the process ends.
  bool Unmap(SteadyTime deadline);

  const FeedOffer offer_;
  const ForkGuard fork_guard_;
  Lifeline lifeline_;
  SessionPages pages_;
  SessionSlots slots_;                         // after the pages: a GPU writes to the release page
  std::unique_ptr<ResidentSamples> resident_;  // of which the batches are lists; null: they are complete
  std::unique_ptr<DecodedBatches> decoded_;
};

}  // namespace pinfeed
