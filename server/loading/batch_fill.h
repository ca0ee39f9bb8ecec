// SPDX-License-Identifier: Apache-2.0
// One batch on its way into its slot. In: a plan and a free slot. Out: the slot filled and delivered, or the
// reason why not.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "server/feed/feed.h"

namespace pinfeed {

// Purpose: loads the samples of one batch piece by piece, each straight into its places, and has the pieces
// delivered in order while later ones are still loaded. Borrows: its feed, which the tasks of its pieces and
// the deliveries keep. Threads: Begin under the feed's lock; the tasks on several workers at once, each
// sample by one. Errors: a bad sample is failed, skipped or zeroed as the spec says. Which one fails the
// batch does not depend on the workers: the first. Invariants: 1. OnFilled once, before the last piece is
// delivered; 2. OnDelivered once, after the last delivery is done; 3. pieces land in order, without gaps.
class Feed::Fill final : public std::enable_shared_from_this<Feed::Fill> {
 public:
  Fill(Feed& feed, uint32_t slot, const BatchPlan& plan);

  // A task that loads the next piece; null when the arena has no memory for it now. Precondition: !begun().
  std::shared_ptr<FillTask> Begin();
  // Whether every piece has its task.
  bool begun() const { return next_ == pieces_.size(); }

 private:
  class PieceTask;
  struct PieceState {
    Piece piece;
    bool filled = false;
  };

  // Of that piece, the samples [begin, end) of the batch.
  void Load(const Piece& piece, uint32_t begin, uint32_t end, SampleScratch& scratch);
  void Bad(uint32_t index, Status status) PF_EXCLUDES(mutex_);
  // All samples of the piece are loaded.
  void Filled(size_t piece) PF_EXCLUDES(mutex_);
  // Delivers it and those behind it that are filled, or leaves that to whoever delivers those before it.
  void DeliverFrom(size_t piece) PF_EXCLUDES(mutex_);
  void Deliver(const Piece& piece, bool last) PF_EXCLUDES(mutex_);
  // Closes the gaps that skipped samples left in the piece.
  SlotRange Compact(const Piece& piece) PF_EXCLUDES(mutex_);
  // Tells the feed what became of the samples; whether the last piece is to be delivered.
  bool Conclude() PF_EXCLUDES(mutex_);
  void Delivered(const Piece& piece, const Status& status, const CopyTime& time) PF_EXCLUDES(mutex_);

  Feed& feed_;
  const uint32_t slot_;
  const BatchPlan plan_;
  const uint64_t planned_ns_;  // 0: nobody traced
  size_t next_ = 0;            // to begin; of the feed's lock
  uint32_t landed_ = 0;        // samples in pieces before; of whoever delivers
  std::atomic<uint32_t> first_failed_{
      UINT32_MAX};  // under on_bad_sample = fail: later samples need not be loaded
  Mutex mutex_;
  std::vector<PieceState> pieces_;                 // `filled` guarded by mutex_
  size_t to_deliver_ PF_GUARDED_BY(mutex_) = 0;    // the next one
  bool delivering_ PF_GUARDED_BY(mutex_) = false;  // a worker is at it
  size_t undelivered_ PF_GUARDED_BY(mutex_) = 0;
  Status delivery_ PF_GUARDED_BY(mutex_);                 // the first error
  Status memory_ PF_GUARDED_BY(mutex_);                   // of the slot
  std::map<uint32_t, Status> bad_ PF_GUARDED_BY(mutex_);  // by index in the batch
};

}  // namespace pinfeed
