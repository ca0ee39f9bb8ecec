// SPDX-License-Identifier: Apache-2.0
// The object behind a pf_producer: one process's attachment to a feed whose batches it helps to fill. In: an
// invitation, and later tasks from the daemon. Out: the memory of each task, and the word that it is filled.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "client/src/base/deadline.h"
#include "client/src/base/fork_guard.h"
#include "client/src/link/lifeline.h"
#include "client/src/link/offer.h"
#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "common/os/memfd.h"
#include "common/spec/tensor_spec.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Returns what a process needs to attach to the session and fill batches of a lane, a serialised
// pinfeed.v1.ProducerInvitation. kFailedPrecondition if the daemon fills the batches; kInvalidArgument for a
// lane that no batch has.
Result<std::string> InvitationTo(const FeedOffer& offer, uint32_t lane);

// A pinfeed.v1.ProducerInvitation without wire types. Invariants after ParseInvitation: 1. every sample of
// every tensor lies inside its slot, and every slot inside the arena; 2. kMinSlots <= slot_count <=
// kMaxSlots; 3. tensor names are distinct; none is packed or padded.
struct Invitation {
  std::string lifeline_path;
  std::array<uint8_t, kTokenBytes> token{};
  uint32_t lane = 0;
  uint64_t arena_bytes = 0;
  uint32_t slot_count = 0;
  BatchLayout layout;      // the tensors to fill
  TensorPlace sample_ids;  // the tensor "sample_id", int64, which the daemon fills
};

// Parses and checks an invitation. kInvalidArgument names the first fault.
Result<Invitation> ParseInvitation(const std::string& serialized, SteadyTime deadline);

// Purpose: receives tasks and tells the daemon when they are done. Owns: the lifeline and a mapping of the
// feed's arena, which forked children do not inherit. Threads: Next and Memory from one at a time; Find,
// Address and Done from any. Errors: kOutOfRange once the feed was closed or the daemon ended, kInternal once
// the daemon broke the protocol, kFailedPrecondition in a forked child. Invariants: 1. an open task has a
// slot of its own; 2. the memory is unmapped before the lifeline closes, after which the daemon reuses the
// slots.
class Producer {
 public:
  static Result<std::unique_ptr<Producer>> Attach(Invitation invitation, SteadyTime deadline);
  ~Producer();

  // Waits for the next task, which is then open. kDeadlineExceeded at the deadline.
  Result<ProducerTask> Next(const Deadline& deadline);
  // Returns an open task. kFailedPrecondition if none has this number.
  Result<ProducerTask> Find(uint64_t task) const PF_EXCLUDES(mutex_);
  // The memory of a tensor in an open task's slot.
  std::byte* Address(const ProducerTask& task, const TensorPlace& tensor) const;
  // Asks for memory of its own for the batch of an open task, which does not fit into its slot; at most once
  // a task. Returns a descriptor of that many bytes. kResourceExhausted, with the numbers, if the daemon or
  // the user has no such memory left; kFailedPrecondition if the feed is shared.
  Result<UniqueFd> Memory(uint64_t task, uint64_t bytes, const Deadline& deadline);
  // Closes a task: its samples are written (`failure` OK), or the feed fails with `failure`. The text is
  // shortened to the room in a frame. Waits at most 10 s while the daemon does not read.
  Status Done(uint64_t task, const Status& failure);

  const BatchLayout& layout() const { return invitation_.layout; }
  const TensorPlace& sample_ids() const { return invitation_.sample_ids; }

 private:
  Producer(Invitation invitation, Lifeline lifeline, Mapping arena)
      : invitation_(std::move(invitation)), lifeline_(std::move(lifeline)), arena_(std::move(arena)) {}
  Status CheckProcess() const;
  Result<ProducerTask> FindLocked(uint64_t task) const PF_REQUIRES(mutex_);
  // Returns the task of a frame, now open. kInternal if it is impossible.
  Result<ProducerTask> Begin(const LifelineFrame& frame);
  // Waits for the answer to a request for memory. Tasks that come before it are for Next.
  Result<UniqueFd> AwaitMemory(const MemoryRequest& request, const Deadline& deadline);

  const Invitation invitation_;
  const ForkGuard fork_guard_;
  Lifeline lifeline_;
  Mapping arena_;  // after the lifeline: destroyed before it
  Status broken_;  // used by Next and Memory only, as is the following
  std::deque<ProducerTask> begun_;
  mutable Mutex mutex_;
  std::array<ProducerTask, kMaxSlots> open_ PF_GUARDED_BY(mutex_){};  // by slot; task 0: none
};

}  // namespace pinfeed
