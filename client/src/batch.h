// SPDX-License-Identifier: Apache-2.0
// What a pf_batch is: one published batch in the hands of the trainer. In: a taken descriptor. Out: its
// release, once.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "client/src/session.h"
#include "common/base/sync.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: counts the owners of a batch and gives its slot back with the last one. Owns a share of its
// session. Threads: Retain and Release from any thread; the rest while one owner is left. Errors: a call on a
// batch that was given back is told to the log and changes nothing, as its memory is kept by the pool (see
// there).
class Batch {
 public:
  bool live() const { return owners_.load(std::memory_order_acquire) > 0; }
  // False in a forked child of the process that took the batch.
  bool in_owner() const { return fork_guard_.InOwner(); }
  // Preconditions: live().
  const Session& session() const { return *session_; }
  const BatchDescriptor& descriptor() const { return descriptor_; }

  void Retain();
  void Release();
  // As Release, but the slot goes back in the order of a stream: see Session. kFailedPrecondition when the
  // batch has other owners. After an error the batch is still the caller's.
  Status ReleaseOn(void* stream);
  Status Write(void* const* outputs, void* stream);

 private:
  friend class BatchPool;
  Status CheckSole(const char* what) const;
  void Finish();
  std::atomic<uint32_t> owners_{0};
  ForkGuard fork_guard_;
  std::shared_ptr<Session> session_;
  BatchDescriptor descriptor_{};
};

// Purpose: the memory of all batches of the process, so that taking one costs no allocation, and so that a
// second release of one finds a dead batch instead of freed memory. Owns every Batch for ever; their number
// is bounded by the batches held at once plus kRest. Threads: any. Invariant: a batch rests while kRest - 1
// others are given back before it serves again: a late double release hits a dead one.
class BatchPool {
 public:
  // Never destroyed: static destructors of the program may still release.
  static BatchPool& Process();

  // A batch with one owner.
  Batch* Take(std::shared_ptr<Session> session, const BatchDescriptor& descriptor);
  void Return(Batch* batch);

 private:
  static constexpr size_t kRest = 256;
  Mutex mutex_;
  std::deque<std::unique_ptr<Batch>> all_ PF_GUARDED_BY(mutex_);
  std::deque<Batch*> resting_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
