// SPDX-License-Identifier: Apache-2.0
// What the stages of a batch did, and when, while somebody traces. In: spans from the feeds and their
// workers. Out: the same, for the one call that asked.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"

namespace pinfeed {

// In the order of a batch's way. Values equal v1::Span::Kind.
enum class SpanKind : uint8_t {
  kRead = 1,     // a worker or reader waits for the source
  kDecode = 2,   // a worker decodes and transforms
  kFill = 3,     // of a slot: from the plan to the last sample
  kCopy = 4,     // a GPU's copy thread: the stream copies the batch
  kPublish = 5,  // of a session: an instant
  kLent = 6,     // of a slot: from the publishing to the last holder's release, as the daemon saw it
  kWait = 7,     // of a session: the trainer waits in next()
  kStep = 8,     // of a session: the trainer goes about the batch that it took last
};

// Times are of CLOCK_MONOTONIC, which all processes of a host share.
struct TraceSpan {
  SpanKind kind{};
  bool open = false;     // went on when the trace, or the session, ended
  uint32_t slot = 0;     // kFill, kCopy, kLent
  uint32_t thread = 0;   // kRead, kDecode, kCopy: its number in the kernel
  uint32_t samples = 0;  // 0 of kWait: its batch is not known
  uint64_t feed = 0;
  uint64_t session = 0;  // kPublish, kWait, kStep
  uint64_t epoch = 0;
  uint64_t batch = 0;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};

uint64_t TraceClockNs();
// The caller's, remembered.
uint32_t ThreadNumber();

// Purpose: takes spans while somebody records, else nothing. Owns: the spans not yet taken, kCapacity at
// most. Threads: any; the lock is a leaf, held for a copy. Errors: one recording at a time. Invariants: 1.
// nobody records: nothing is kept, and asking costs one relaxed load; 2. a recording gets no span of an owner
// it does not want, nor one of an earlier recording.
class Tracer {
 public:
  static constexpr size_t kCapacity = size_t{1} << 16;  // 4 MiB

  // Purpose: the spans from its start to its end. Move-only. Threads: one at a time. Outlived by the tracer.
  class Recording {
   public:
    Recording(Recording&& other) noexcept : tracer_(std::exchange(other.tracer_, nullptr)) {}
    Recording& operator=(Recording&&) = delete;
    ~Recording();
    // What came since the last call, in the order of the ends (about: threads race).
    std::vector<TraceSpan> Take();
    size_t waiting() const;
    // Spans that came when kCapacity of them waited.
    uint64_t lost() const;

   private:
    friend class Tracer;
    explicit Recording(Tracer* tracer) : tracer_(tracer) {}
    Tracer* tracer_;
  };

  Tracer() = default;
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Records the feeds of `owner`, or all. kResourceExhausted while somebody else does.
  Result<Recording> Start(std::optional<uid_t> owner) PF_EXCLUDES(mutex_);

  // Whether spans of this owner's feeds are wanted now.
  bool Wants(uid_t owner) const {
    const uint64_t scope = scope_.load(std::memory_order_relaxed);
    return scope != kNobody && (scope == kAll || scope == kFirstOwner + owner);
  }
  // Changes with every recording: what was noted for an earlier one is then of no use.
  uint64_t run() const { return run_.load(std::memory_order_relaxed); }
  void Record(uid_t owner, std::span<const TraceSpan> spans) PF_EXCLUDES(mutex_);

 private:
  static constexpr uint64_t kNobody = 0;
  static constexpr uint64_t kAll = 1;
  static constexpr uint64_t kFirstOwner = 2;

  std::atomic<uint64_t> scope_{kNobody};  // changed under the lock
  std::atomic<uint64_t> run_{0};          // likewise
  mutable Mutex mutex_;
  uint64_t began_ns_ PF_GUARDED_BY(mutex_) = 0;
  std::vector<TraceSpan> spans_ PF_GUARDED_BY(mutex_);
  uint64_t lost_ PF_GUARDED_BY(mutex_) = 0;
};

// Purpose: the spans of one worker's turn at a batch. What follows closely upon its like is drawn as one, so
// that rows of a few hundred nanoseconds do not make a span each. Records at the end. Borrows the tracer.
// Threads: one.
class WorkSpans {
 public:
  // `like` has the feed, batch and slot.
  WorkSpans(Tracer& tracer, uid_t owner, const TraceSpan& like)
      : tracer_(tracer), owner_(owner), like_(like) {}
  ~WorkSpans() { Flush(); }
  WorkSpans(const WorkSpans&) = delete;
  WorkSpans& operator=(const WorkSpans&) = delete;
  // Ordered by time.
  void Add(SpanKind kind, uint64_t begin_ns, uint64_t end_ns);

 private:
  void Flush();
  Tracer& tracer_;
  const uid_t owner_;
  const TraceSpan like_;
  std::vector<TraceSpan> spans_;
};

}  // namespace pinfeed
