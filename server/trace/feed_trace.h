// SPDX-License-Identifier: Apache-2.0
// Derives the spans of one feed's slots and sessions. In: the feed's events, and the words that its clients
// write. Out: spans for the tracer.
#pragma once

#include <array>
#include <cstdint>

#include "common/wire/shared_page.h"
#include "server/memory/control_pages.h"
#include "server/trace/feed_recorder.h"

namespace pinfeed {

// Purpose: the tracing state of one session's trainer during a recording. Guarded by the feed's lock.
class ClientTrace {
 public:
  ClientTrace() = default;

 private:
  friend class FeedTrace;
  enum class Activity : uint8_t { kUnknown, kStep, kWait };
  struct Published {
    uint64_t sequence = UINT64_MAX;
    uint64_t epoch = 0, batch = 0;
    uint32_t samples = 0;
  };
  uint64_t run_ = 0;  // the tracer's run to which the other fields belong
  std::array<Published, kMaxSlots> published_{};
  Activity activity_ = Activity::kUnknown;
  uint64_t since_ns_ = 0;  // when the activity began
  uint64_t woken_ns_ = 0;  // kWait: when the awaited batch was published
  uint64_t quiet_ns_ = 0;  // kWait: when it was first seen neither waiting nor with a new batch
  uint64_t taken_ = 0;
};

// Purpose: converts a feed's events into spans. A client's waits and steps are derived from its own words in
// the release page (protocol.md). The start of a wait is exact, and a wait ends when the batch is published.
// A batch taken, or a slot released, without a wait is noticed at the next observation.
// Owns: only bookkeeping. Threads: one at a time; the feed's lock guards it.
// Errors: none; implausible words produce no spans.
class FeedTrace {
 public:
  explicit FeedTrace(const FeedRecorder& recorder) : recorder_(recorder) {}

  bool On() const { return recorder_.On(); }
  // The following do nothing unless On(). `now_ns` is the common time of simultaneous events, or 0 if tracing
  // was off at that time.
  void SlotLent(uint32_t slot, const BatchDescriptor& batch, uint64_t now_ns);
  // Called when the last holder has released the slot. A second call for the same lending does nothing.
  void SlotReleased(uint32_t slot);
  // Before the batch is published to that session.
  void Publishing(ClientTrace& client, const ControlPages& pages, const BatchDescriptor& batch,
                  uint64_t now_ns);
  void Observe(ClientTrace& client, const ControlPages& pages);
  // Records the spans that are still open. The last call of a recording.
  void Finish(ClientTrace& client, const ControlPages& pages);
  void FinishSlots();

 private:
  struct Lending {
    uint64_t since_ns = 0;  // 0: not lent
    uint64_t epoch = 0, batch = 0;
    uint32_t samples = 0;
  };
  void SyncRun();
  void SyncClient(ClientTrace& client, const ControlPages& pages) const;
  void Observe(ClientTrace& client, const ControlPages& pages, uint64_t now_ns) const;
  // Ends the client's current activity and begins another.
  void SwitchActivity(ClientTrace& client, const ControlPages& pages, ClientTrace::Activity to,
                      uint64_t at_ns, bool open = false) const;
  void EndLending(uint32_t slot, uint64_t now_ns, bool open);

  const FeedRecorder recorder_;
  uint64_t run_ = 0;
  std::array<Lending, kMaxSlots> lendings_{};
};

}  // namespace pinfeed
