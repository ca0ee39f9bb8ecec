// SPDX-License-Identifier: Apache-2.0
// The object behind a pf_batch: one published batch that the trainer holds. In: a taken descriptor. Out: its
// release, once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/src/session/session.h"
#include "common/base/sync.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: counts a batch's owners (references) and returns its slot when the last one releases it. Owns: a
// share of its session. Threads: all from any thread; of calls at the same time that would each return the
// slot, one does. Errors: Retain and Release of a released batch log a warning and do nothing. This is safe
// because the pool never frees a batch's memory.
class Batch {
 public:
  bool live() const { return owners_.load(std::memory_order_acquire) > 0; }
  // Returns whether this process took the batch; false in a forked child.
  bool in_creator_process() const { return fork_guard_.InCreatorProcess(); }
  // Precondition for the following: live(), and that no other thread returns the batch meanwhile.
  const Session& session() const { return *session_; }
  const BatchDescriptor& descriptor() const { return descriptor_; }

  // Session::RowOffsets of an output. Write then writes no more rows there.
  Status RowOffsets(size_t output, std::span<int64_t> offsets) const PF_EXCLUDES(rows_mutex_);

  // Session::GiveBack. kFailedPrecondition if the batch has other owners. On an error the caller still owns
  // it.
  Status GiveBack();
  void Retain();
  void Release();
  // Release the batch like Release, but through Session::ReleaseOn (the slot is returned in the order of a
  // stream) and Session::Write (the outputs are written first). kFailedPrecondition if the batch has other
  // owners. On an error the caller still owns the batch.
  Status ReleaseOn(void* stream);
  Status Write(std::span<void* const> outputs, void* stream) PF_EXCLUDES(rows_mutex_);

 private:
  friend class BatchPool;
  // Returns the slot by `give`, for a sole owner. Others find the batch released meanwhile. If `give` fails,
  // the owner has it back afterwards.
  template <typename Give>
  Status ReturnBy(const char* what, const Give& give);
  // One for each output; NULL is possible only where nothing is written.
  Status CheckPointers(std::span<void* const> outputs, const std::vector<uint64_t>& max_rows) const;
  void Finish();
  std::atomic<uint32_t> owners_{0};
  ForkGuard fork_guard_;
  std::shared_ptr<Session> session_;
  Batch* after_ = nullptr;  // in the pool's line of resting batches
  BatchDescriptor descriptor_{};
  mutable Mutex rows_mutex_;
  mutable std::vector<uint64_t> max_rows_ PF_GUARDED_BY(rows_mutex_);  // see OutputMemory
};

// Purpose: holds the memory of all batches of the process. A double release finds a dead batch instead of
// freed memory. Taking a batch allocates nothing, since a new page costs more than all the rest: the pool is
// made when the library is loaded, with enough for a feed whose slots are all held. Owns: every Batch,
// forever. Threads: any. Invariant: a released batch is reused only after kMinResting - 1 others were
// released, so that a late double release finds it dead.
class BatchPool {
 public:
  // The process-wide pool. Never destroyed, since static destructors of the program may release batches.
  static BatchPool& Process();

  // Returns a batch with one owner.
  Batch* Take(std::shared_ptr<Session> session, const BatchDescriptor& descriptor);
  void Return(Batch* batch);

 private:
  static constexpr size_t kMinResting = 256;
  BatchPool();
  void Grow(size_t batches) PF_REQUIRES(mutex_);

  Mutex mutex_;
  const HeldAcrossForks held_{mutex_};
  std::vector<std::unique_ptr<Batch[]>> all_ PF_GUARDED_BY(mutex_);
  // The line of those that rest: first the ones that were never taken, then in the order of their release.
  Batch* first_ PF_GUARDED_BY(mutex_) = nullptr;
  Batch* last_ PF_GUARDED_BY(mutex_) = nullptr;
  size_t resting_ PF_GUARDED_BY(mutex_) = 0;
};

}  // namespace pinfeed
