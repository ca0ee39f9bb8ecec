// SPDX-License-Identifier: Apache-2.0
// One attached session: its pages, its arena and its lifeline. In: an offer. Out: descriptors of published
// batches, checked; releases.
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

// Purpose: the mapped memory of one session and the protocol on it. Owns: mappings, doorbell, lifeline.
// Shared by the feed and by each batch that is held; the last one to let go unmaps and says goodbye, so that
// memory under a held batch never vanishes; on a GPU it waits until the streams are done with it, at most 10
// s. Threads: Take, Sleep and the wait figures from the feed's one thread; Release and the constant reads
// from any. Errors: nothing that the daemon writes is believed: a descriptor that cannot be true is
// kInternal. Invariants: 1. batches are taken in sequence, none twice; 2. a slot's word gets the generation
// of the batch that was taken from it, once.
class Session {
 public:
  // Connects the lifeline, maps and verifies everything; an arena on a device on the caller's GPU `ordinal`.
  // On an error nothing is mapped, and the daemon, if it is there, has its memory back. `backend_unusable`:
  // the error is that of mapping or proving an arena on a device, which is a property of this machine:
  // another backend may do. Precondition: the offer passed CheckOffer.
  static Result<std::shared_ptr<Session>> Attach(FeedOffer offer, int ordinal, SteadyTime deadline,
                                                 bool* backend_unusable);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const FeedOffer& offer() const { return offer_; }
  // Of the GPU when the batches are on one: an address there.
  std::byte* slot(uint32_t index) const {
    return (device_ != nullptr ? device_->address() : arena_.data()) + index * offer_.layout.slot_stride;
  }
  // The caller's GPU, -1 for the host.
  int device() const { return device_ != nullptr ? ordinal_ : -1; }

  // True: `batch` is the next one and now held. False: none is published. An error: why the session was
  // evicted, or the daemon is broken.
  Result<bool> Take(BatchDescriptor* batch);
  bool HasNext() const;
  // Acquire: batches published before the state was set are visible to a Take that follows.
  FeedState state() const;
  // Why the feed failed, or the session was evicted. Precondition: state() is one of those.
  Status Failure() const;

  // The word that changes with each publish and each change of state: read it, look for news, then Sleep on
  // what was read.
  uint32_t WakeWord() const;
  void Sleep(uint32_t seen, std::chrono::nanoseconds at_most) const;
  bool HungUp() const { return lifeline_.HungUp(); }
  // Tells a daemon that drains not to wait for the batches that are held: their memory stays mapped here.
  void HangUp() { lifeline_.HangUp(); }

  // Gives the slot back. Never blocks. On a device: nothing that was put on a stream reads it any more.
  void Release(const BatchDescriptor& batch);
  // Gives the slot back when `stream` gets there. Precondition: device() >= 0.
  Status ReleaseOn(const BatchDescriptor& batch, void* stream);
  // Writes the outputs and gives the slot back: on a device when `stream` gets there, on the host at once.
  // outputs[i] has room for batch_size samples of outputs()[i]. After an error the slot is not given back.
  Status Write(const BatchDescriptor& batch, void* const* outputs, void* stream);
  // Batches taken and not yet released. Once it is 0, no other thread touches the mappings any more.
  uint32_t held() const { return held_.load(std::memory_order_acquire); }

  // Figures for `pinfeed status`: the trainer's waiting. Call it before sleeping: it also rings for releases
  // that did not.
  void BeginWait(uint64_t now_ns);
  void EndWait(uint64_t waited_ns);
  // Another batch was copied because the trainer holds too many slots.
  void CountCopied();

  // Has the daemon count it no more among its group: nothing further is taken, and what is held stays so
  // until it is released. Waits for the daemon's word, or its end. Threads: the feed's.
  void Leave(SteadyTime deadline);
  // Unmaps, says goodbye and waits until the daemon has taken the memory back, so that a session opened next
  // finds it free. The session is unusable afterwards. Precondition: held() == 0.
  void CloseAndWait(SteadyTime deadline);

 private:
  struct Memory {
    Mapping publish;
    Mapping release;
    Mapping arena;                        // on the host
    std::unique_ptr<DeviceSlots> device;  // else
  };
  Session(FeedOffer offer, int ordinal, Lifeline lifeline, Memory memory, UniqueFd doorbell);
  static Result<Memory> Map(const FeedOffer& offer, int ordinal, std::vector<UniqueFd>& fds,
                            bool* backend_unusable);
  void Forget(const BatchDescriptor& batch);
  // Lets go of all memory, once the GPU needs it no more. False: it still does at `deadline`, or will never
  // say, as its context is broken; the memory stays until the process ends.
  bool Unmap(SteadyTime deadline);
  Status Check(const BatchDescriptor& batch, uint64_t expected) const;
  // Of a session that is evicted or leaves: which sequence number is the first that is not its own. The
  // daemon says it at once; kUnlimited when it is gone, or has not by `deadline`.
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
  uint64_t wait_ns_ = 0;                    // of the feed's thread
  uint64_t copied_ = 0;                     // batches that the trainer got as copies
  std::atomic<uint32_t> held_{0};
  std::array<std::atomic<bool>, kMaxSlots> slot_held_{};
};

}  // namespace pinfeed
