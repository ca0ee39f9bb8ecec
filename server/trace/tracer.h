// SPDX-License-Identifier: Apache-2.0
// Records the work of each stage of a batch as spans, while a client traces. In: spans from feeds and
// workers. Out: the same spans, for the one call that requested them.
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

// In the order of a batch's stages. Values equal v1::Span::Kind.
enum class SpanKind : uint8_t {
  kRead = 1,     // a worker or reader reads from the source
  kDecode = 2,   // a worker decodes and transforms
  kFill = 3,     // slot: from planning to the last sample
  kCopy = 4,     // GPU: the copy stream copies the batch
  kPublish = 5,  // session: an instant
  kLent = 6,     // slot: from publishing until the daemon saw the last release
  kWait = 7,     // session: the trainer waits in next()
  kStep = 8,     // session: the trainer works on the batch that it took last
};

// Times are CLOCK_MONOTONIC, which all processes of a host share.
struct TraceSpan {
  SpanKind kind{};
  bool open = false;     // still open when the trace or the session ended
  uint32_t slot = 0;     // kFill, kCopy, kLent
  uint32_t thread = 0;   // kRead, kDecode, kCopy: kernel thread id
  uint32_t samples = 0;  // kWait: 0 when the batch is unknown
  uint64_t feed = 0;
  uint64_t session = 0;  // kPublish, kWait, kStep
  uint64_t epoch = 0;
  uint64_t batch = 0;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};

uint64_t TraceClockNs();
// The kernel id of the calling thread, cached.
uint32_t ThreadNumber();

// Purpose: collects spans during a recording. Owns: the spans not yet taken, at most kCapacity. Threads: any;
// the lock is a leaf, held for a copy. Errors: only one recording at a time.
// Invariants:
// 1. Without a recording, nothing is stored, and the check costs one relaxed load.
// 2. A recording gets no spans of an earlier recording, or of other owners than the one that it was started
// for.
class Tracer {
 public:
  static constexpr size_t kCapacity = size_t{1} << 16;  // 4 MiB

  // Purpose: one recording, from its start to its end. Move-only. Threads: one at a time. The tracer outlives
  // it.
  class Recording {
   public:
    Recording(Recording&& other) noexcept : tracer_(std::exchange(other.tracer_, nullptr)) {}
    Recording& operator=(Recording&&) = delete;
    ~Recording();
    // The spans since the last call, roughly ordered by end time (threads race).
    std::vector<TraceSpan> Take();
    size_t waiting() const;
    // The number of spans dropped because kCapacity of them were waiting.
    uint64_t lost() const;

   private:
    friend class Tracer;
    explicit Recording(Tracer* tracer) : tracer_(tracer) {}
    Tracer* tracer_;
  };

  Tracer() = default;

  // Records the feeds of `owner`, or all feeds. kResourceExhausted while another recording runs.
  Result<Recording> Start(std::optional<uid_t> owner) PF_EXCLUDES(mutex_);

  // Whether spans of this owner's feeds are wanted now.
  bool Wants(uid_t owner) const {
    const uint64_t scope = scope_.load(std::memory_order_relaxed);
    return scope != kNobody && (scope == kAll || scope == kFirstOwner + owner);
  }
  // Changes with every recording, which invalidates state kept for an earlier one.
  uint64_t run() const { return run_.load(std::memory_order_relaxed); }
  void Record(uid_t owner, std::span<const TraceSpan> spans) PF_EXCLUDES(mutex_);

 private:
  static constexpr uint64_t kNobody = 0;
  static constexpr uint64_t kAll = 1;
  static constexpr uint64_t kFirstOwner = 2;

  std::atomic<uint64_t> scope_{kNobody};  // written under the lock
  std::atomic<uint64_t> run_{0};          // written under the lock
  mutable Mutex mutex_;
  uint64_t began_ns_ PF_GUARDED_BY(mutex_) = 0;
  std::vector<TraceSpan> spans_ PF_GUARDED_BY(mutex_);
  uint64_t lost_ PF_GUARDED_BY(mutex_) = 0;
};

// Purpose: the spans of one worker on one batch. Adjacent spans of the same kind are merged, so that short
// rows do not produce one span each. Records them at the end. Borrows the tracer. Threads: one.
class WorkSpans {
 public:
  // `like` provides the feed, batch and slot.
  WorkSpans(Tracer& tracer, uid_t owner, const TraceSpan& like)
      : tracer_(tracer), owner_(owner), like_(like) {}
  ~WorkSpans() { Flush(); }
  WorkSpans(const WorkSpans&) = delete;
  WorkSpans& operator=(const WorkSpans&) = delete;
  // Call in order of time.
  void Add(SpanKind kind, uint64_t begin_ns, uint64_t end_ns);

 private:
  void Flush();
  Tracer& tracer_;
  const uid_t owner_;
  const TraceSpan like_;
  std::vector<TraceSpan> spans_;
};

}  // namespace pinfeed
