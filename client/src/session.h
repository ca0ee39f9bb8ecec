// SPDX-License-Identifier: Apache-2.0
// One attached session: its pages, its arena and its lifeline. In: an offer. Out: checked descriptors of
// published batches; releases.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/device_slots.h"
#include "client/src/fork_guard.h"
#include "client/src/lifeline.h"
#include "client/src/offer.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/os/memfd.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: the mapped memory of one session and the protocol on it. Owns: mappings, doorbell, lifeline. The
// feed and each held batch share it, so that memory under a held batch never vanishes; the last owner unmaps
// and sends bye. On a GPU the last owner waits at most 10 s until the streams are done. Threads: Take, Sleep
// and the wait figures from the feed's thread; Release and the constant accessors from any. Errors: nothing
// the daemon writes is trusted; an impossible descriptor is kInternal. Invariants: 1. batches are taken in
// sequence, none twice; 2. a slot's release word gets the generation of the batch taken from it, once.
class Session {
 public:
  // Connects the lifeline, then maps and verifies everything; a device arena on the caller's GPU `ordinal`.
  // On an error nothing stays mapped, and the daemon reclaims its memory. Sets `backend_unusable` if mapping
  // or checking a device arena failed: another backend may work on this machine. Precondition: the offer
  // passed CheckOffer.
  static Result<std::shared_ptr<Session>> Attach(FeedOffer offer, int ordinal, SteadyTime deadline,
                                                 bool* backend_unusable);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const FeedOffer& offer() const { return offer_; }
  // The start of a batch's slot; a device address if the batches are on a GPU.
  std::byte* slot(uint32_t index) const {
    return (device_ != nullptr ? device_->address() : arena_.data()) + index * offer_.layout.slot_stride;
  }
  // The caller's GPU ordinal, or -1 for the host.
  int device() const { return device_ != nullptr ? ordinal_ : -1; }

  // Returns true and the next batch, now held; false if none is published. An error says why the session was
  // evicted, or that the daemon is broken.
  Result<bool> Take(BatchDescriptor* batch);
  bool HasNext() const;
  // Acquire: a Take that follows sees all batches published before the state was set.
  FeedState state() const;
  // Why the feed failed or the session was evicted. Precondition: state() says so.
  Status Failure() const;

  // A word that changes with each publish and each change of state. To wait: read it, look for batches, then
  // Sleep with the value read.
  uint32_t WakeWord() const;
  void Sleep(uint32_t seen, std::chrono::nanoseconds at_most) const;
  bool HungUp() const { return lifeline_.HungUp(); }
  // Tells a draining daemon not to wait for held batches, whose memory stays mapped here.
  void HangUp() { lifeline_.HangUp(); }

  // Returns the slot. Never blocks. On a device, no queued work may read it any more.
  void Release(const BatchDescriptor& batch);
  // Returns the slot in the order of `stream`. Precondition: device() >= 0.
  Status ReleaseOn(const BatchDescriptor& batch, void* stream);
  // Writes the outputs and returns the slot: on a device in the order of `stream`, on the host at once.
  // outputs[i] has room for batch_size samples of outputs()[i]; of a packed one, for the batch's rows. On an
  // error the slot is not returned.
  Status Write(const BatchDescriptor& batch, void* const* outputs, void* stream);
  // Sets `offsets`, which has an element more than the batch has samples, to the first row of each sample and
  // the number of all, counted in the order of the samples. kInternal: the daemon's extents are wrong. On a
  // device it waits for a copy of its own. Precondition: the output is packed.
  Status RowOffsets(const BatchDescriptor& batch, const OfferedOutput& output,
                    std::span<int64_t> offsets) const;
  // The number of batches taken and not released. Once it is 0, no other thread touches the mappings.
  uint32_t held() const { return held_.load(std::memory_order_acquire); }

  // Counts the trainer's waiting, for `pinfeed status`. Call BeginWait before sleeping: it also signals
  // releases that did not ring the doorbell.
  void BeginWait(uint64_t now_ns);
  void EndWait(uint64_t waited_ns);
  // Counts a batch that was copied because the trainer holds too many slots.
  void CountCopied();

  // Leaves the group: no more batches are taken; held ones stay valid until released. Waits until the daemon
  // confirms or ends. Threads: the feed's.
  void Leave(SteadyTime deadline);
  // Unmaps, sends bye, and waits until the daemon has reclaimed the memory, so that the next session finds it
  // free. The session is unusable afterwards. Precondition: held() == 0.
  void CloseAndWait(SteadyTime deadline);

 private:
  // The extents of a packed output's samples, as they lie in the slot, checked.
  Result<std::vector<RowExtent>> Extents(const BatchDescriptor& batch, const OfferedOutput& output) const;
  // On the host: the rows in the order of the samples, and their new extents.
  Status GatherRows(const BatchDescriptor& batch, const OfferedOutput& output, void* rows,
                    void* extents) const;
  struct Memory {
    Mapping publish;
    Mapping release;
    Mapping arena;                        // on the host
    std::unique_ptr<DeviceSlots> device;  // on a device
  };
  Session(FeedOffer offer, int ordinal, Lifeline lifeline, Memory memory, UniqueFd doorbell);
  static Result<Memory> Map(const FeedOffer& offer, int ordinal, std::vector<UniqueFd>& fds,
                            bool* backend_unusable);
  void ClearHeld(const BatchDescriptor& batch);
  // Unmaps all memory once the GPU no longer needs it. Returns false if the GPU still does at `deadline`, or
  // cannot say because its context is broken; the memory then stays mapped until the process ends.
  bool Unmap(SteadyTime deadline);
  Status Check(const BatchDescriptor& batch, uint64_t expected) const;
  // For a session that is evicted or leaves: the first sequence number that is not its own. The daemon writes
  // it at once. Returns kUnlimited if the daemon is gone or has not written it by `deadline`.
  uint64_t AwaitLimit(SteadyTime deadline) const;
  void RingIfStarved();
  const PublishPage& publish_page() const { return *reinterpret_cast<const PublishPage*>(publish_.data()); }
  ReleasePage& release_page() const { return *reinterpret_cast<ReleasePage*>(release_.data()); }

  const FeedOffer offer_;
  const ForkGuard fork_guard_;
  Lifeline lifeline_;
  const int ordinal_;
  const Mapping publish_;
  Mapping release_;
  Mapping arena_;
  std::unique_ptr<DeviceSlots> device_;
  const UniqueFd doorbell_;

  std::atomic<uint64_t> next_sequence_{0};  // written by the feed's thread only
  uint64_t wait_ns_ = 0;                    // used by the feed's thread only
  uint64_t copied_ = 0;                     // batches that the trainer got as copies
  std::atomic<uint32_t> held_{0};
  std::array<std::atomic<bool>, kMaxSlots> slot_held_{};
};

}  // namespace pinfeed
