// SPDX-License-Identifier: Apache-2.0
#include "server/trace/tracer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "common/base/histogram.h"

namespace pinfeed {
namespace {

constexpr uint64_t kJoinNs = 2'000;    // smaller gaps are invisible in a trace of milliseconds
constexpr uint64_t kTooShortNs = 500;  // shorter spans between others are dropped
constexpr size_t kFlushAt = 256;

}  // namespace

uint64_t TraceClockNs() {
  return Nanoseconds(std::chrono::steady_clock::now().time_since_epoch());
}

uint32_t ThreadNumber() {
  thread_local const auto number = static_cast<uint32_t>(::gettid());
  return number;
}

Result<Tracer::Recording> Tracer::Start(std::optional<uid_t> owner) {
  const MutexLock lock(mutex_);
  if (scope_.load(std::memory_order_relaxed) != kNobody)
    return ResourceExhausted(
        "trace: this daemon is already being traced; try again when that trace has ended");
  spans_.reserve(kCapacity);
  lost_ = 0;
  began_ns_ = TraceClockNs();
  run_.fetch_add(1, std::memory_order_relaxed);
  scope_.store(owner ? kFirstOwner + *owner : kAll, std::memory_order_relaxed);
  return Recording(this);
}

void Tracer::Record(uid_t owner, std::span<const TraceSpan> spans) {
  const MutexLock lock(mutex_);
  if (!Wants(owner)) return;  // the recording ended or changed since the caller checked
  for (const TraceSpan& span : spans) {
    if (span.end_ns < began_ns_) continue;
    if (spans_.size() >= kCapacity) {
      ++lost_;
      continue;
    }
    spans_.push_back(span);
    spans_.back().begin_ns = std::max(span.begin_ns, began_ns_);
  }
}

Tracer::Recording::~Recording() {
  if (tracer_ == nullptr) return;
  const MutexLock lock(tracer_->mutex_);
  tracer_->scope_.store(kNobody, std::memory_order_relaxed);
  std::vector<TraceSpan>().swap(tracer_->spans_);
}

std::vector<TraceSpan> Tracer::Recording::Take() {
  std::vector<TraceSpan> taken;
  taken.reserve(kCapacity);
  const MutexLock lock(tracer_->mutex_);
  taken.swap(tracer_->spans_);
  return taken;
}

size_t Tracer::Recording::waiting() const {
  const MutexLock lock(tracer_->mutex_);
  return tracer_->spans_.size();
}

uint64_t Tracer::Recording::lost() const {
  const MutexLock lock(tracer_->mutex_);
  return tracer_->lost_;
}

void WorkSpans::Add(SpanKind kind, uint64_t begin_ns, uint64_t end_ns) {
  if (!spans_.empty()) {
    TraceSpan& last = spans_.back();
    if (last.kind == kind && begin_ns - last.end_ns < kJoinNs) {
      last.end_ns = end_ns;
      return;
    }
    if (end_ns - begin_ns < kTooShortNs) return;
  }
  if (spans_.size() >= kFlushAt) Flush();
  TraceSpan& span = spans_.emplace_back(like_);
  span.kind = kind;
  span.thread = ThreadNumber();
  span.begin_ns = begin_ns;
  span.end_ns = end_ns;
}

void WorkSpans::Flush() {
  if (!spans_.empty()) tracer_.Record(owner_, spans_);
  spans_.clear();
}

}  // namespace pinfeed
