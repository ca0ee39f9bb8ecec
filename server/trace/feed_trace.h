// SPDX-License-Identifier: Apache-2.0
// The spans of one feed's slots and sessions. In: what the feed does, and the words that its clients write.
// Out: spans for the tracer.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>

#include "common/wire/shared_page.h"
#include "server/memory/arena.h"
#include "server/memory/control_pages.h"
#include "server/order/sampler.h"
#include "server/trace/tracer.h"

namespace pinfeed {

// Purpose: what is known of one session's trainer while a recording runs. Guarded by the feed's lock.
class ClientTrace {
 public:
  ClientTrace() = default;

 private:
  friend class FeedTrace;
  enum class Doing : uint8_t { kUnknown, kStep, kWait };
  struct Published {
    uint64_t sequence = UINT64_MAX;
    uint64_t epoch = 0, batch = 0;
    uint32_t samples = 0;
  };
  uint64_t run_ = 0;  // of the tracer; all else is of that recording
  std::array<Published, kMaxSlots> published_{};
  Doing doing_ = Doing::kUnknown;
  uint64_t since_ns_ = 0;  // when it began to
  uint64_t woken_ns_ = 0;  // kWait: when the batch was published that it waits for
  uint64_t quiet_ns_ = 0;  // kWait: when it was first seen neither waiting nor with a new batch
  uint64_t taken_ = 0;
};

// Purpose: turns a feed's doings into spans. A client's waits and steps come from its own words in the
// release page (protocol.md): when a wait began is exact; it ends when the batch is published; that a batch
// was taken, or a slot released, without a wait is seen at the next look. Owns: nothing but notes. Borrows:
// the tracer, which outlives it; none: never records. Threads: On and Work from any thread, the rest under
// the feed's lock. Errors: none; words that cannot be true are not drawn.
class FeedTrace {
 public:
  FeedTrace(Tracer* tracer, uid_t owner, uint64_t feed) : tracer_(tracer), owner_(owner), feed_(feed) {}

  // One relaxed load. True: spans of this feed are wanted now.
  bool On() const { return tracer_ != nullptr && tracer_->Wants(owner_); }
  // Precondition of these: On() was true once.
  void Record(TraceSpan span) const;
  void Work(const BatchPlan& plan, uint32_t slot, uint32_t samples, std::optional<WorkSpans>& spans) const;

  // On the thread that copied.
  void Copied(uint32_t slot, const BatchPlan& plan, uint32_t samples, const CopyTime& time) const;

  // What follows does nothing unless On(). `now_ns`: one time for all that happens at once, 0 if nobody
  // traced then.
  void SlotLent(uint32_t slot, const BatchDescriptor& batch, uint64_t now_ns);
  // The last holder has released it; a second call for the same lending does nothing.
  void SlotReleased(uint32_t slot);
  // Before the batch is published to that session.
  void Publishing(ClientTrace& client, const ControlPages& pages, const BatchDescriptor& batch,
                  uint64_t now_ns);
  void LookAt(ClientTrace& client, const ControlPages& pages);
  // Draws what goes on; the last call of a recording.
  void Finish(ClientTrace& client, const ControlPages& pages);
  void FinishSlots();

 private:
  struct Lending {
    uint64_t since_ns = 0;  // 0: none is known
    uint64_t epoch = 0, batch = 0;
    uint32_t samples = 0;
  };
  void FollowRun();
  void Follow(ClientTrace& client, const ControlPages& pages) const;
  void Look(ClientTrace& client, const ControlPages& pages, uint64_t now_ns) const;
  // Ends what the client was doing and begins another thing.
  void Turn(ClientTrace& client, const ControlPages& pages, ClientTrace::Doing to, uint64_t at_ns,
            bool open = false) const;
  void Draw(uint32_t slot, uint64_t now_ns, bool open);

  Tracer* const tracer_;
  const uid_t owner_;
  const uint64_t feed_;
  uint64_t run_ = 0;
  std::array<Lending, kMaxSlots> lendings_{};
};

}  // namespace pinfeed
