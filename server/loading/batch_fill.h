// SPDX-License-Identifier: Apache-2.0
// One batch from its plan to its slot. In: a plan, a free slot, and what a producer fills. Out: the slot
// filled and delivered, or the reason why not.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "server/loading/batch_producer.h"
#include "server/loading/delivery_order.h"
#include "server/memory/arena.h"
#include "server/order/sampler.h"

namespace pinfeed {

// A sample that could not be used, and why.
struct BadSampleNote {
  uint64_t sample_id = 0;
  std::string reason;
  Code code = Code::kDataLoss;
};

// What became of a batch's samples.
struct FillResult {
  Status status;                   // not OK: the batch cannot be filled
  uint32_t samples = 0;            // in the slot
  uint32_t skipped = 0;            // left out as bad
  uint32_t zeroed = 0;             // bad, and zeros
  bool all_bad = false;            // no sample of the batch is good
  uint32_t bad_samples = 0;        // all of them
  std::vector<BadSampleNote> bad;  // the first kMaxBadNotes, in the batch's order
  std::vector<bool> more_bad;      // by index in the batch, the others; empty: none
};

// A batch may be a whole dataset, all of whose samples are bad: it has no room for more texts.
inline constexpr size_t kMaxBadNotes = 1000;

// Purpose: requests the pieces of one batch from the producer, and delivers the filled ones in order while
// later ones are still being filled. Borrows: its context and Owner, which the requests and the deliveries
// keep alive. Threads: NextRequest under the owner's lock; the rest from any thread. Errors: a bad sample is
// failed, skipped or zeroed as the spec says; a failed batch names its first bad sample, whatever the order
// of loading. Invariants: 1. OnFilled is called once, before the last piece is delivered; 2. OnDelivered is
// called once, after the last delivery has ended; 3. pieces are delivered in order, without gaps.
class BatchFill final : public std::enable_shared_from_this<BatchFill> {
 public:
  // The feed. Its methods are called without a lock, on any thread.
  class Owner : public std::enable_shared_from_this<Owner> {
   public:
    virtual ~Owner() = default;
    // Memory for another piece may be free.
    virtual void OnPieceMemory() = 0;
    // Every sample of the slot's batch is filled or given up. / The whole batch is where the clients see it.
    virtual void OnFilled(uint32_t slot, FillResult result) = 0;
    virtual void OnDelivered(uint32_t slot, const Status& status) = 0;
    // See PieceRequest::Replace.
    virtual bool OnReplace(uint32_t slot) = 0;
  };

  BatchFill(FillContext& context, Owner& owner, uint32_t slot, const BatchPlan& plan);

  // Requests the next piece; null when the arena has no memory for it now. Precondition: !all_requested().
  std::shared_ptr<PieceRequest> NextRequest();
  bool all_requested() const { return next_ == pieces_.size(); }

  // What becomes of the pieces. Called by their requests, without a lock; OnComplete once for each piece.
  void OnBad(uint32_t index, Status why) PF_EXCLUDES(mutex_);
  void OnLeftOut(uint32_t index) PF_EXCLUDES(mutex_);
  void OnComplete(size_t piece, Status status) PF_EXCLUDES(mutex_);
  bool OnReplace() { return owner_.OnReplace(slot_); }

 private:
  struct PieceState {
    Piece piece;
    std::vector<std::atomic<uint64_t>> packed_rows;  // see SamplePlaces; of the threads that fill the piece
  };

  static std::vector<PieceState> PiecesOf(const Arena& arena, uint32_t slot, uint32_t samples);
  // Delivers the piece and the filled ones behind it; leaves that to the thread that delivers already, if
  // any.
  void DeliverFrom(size_t piece) PF_EXCLUDES(mutex_);
  void Deliver(const PieceState& state, bool last) PF_EXCLUDES(mutex_);
  // Closes the gaps that samples left in the piece which are skipped or left out.
  SlotRange Compact(const Piece& piece) PF_EXCLUDES(mutex_);
  // Reports the batch's samples to the owner. Returns whether the last piece is to be delivered.
  bool Conclude() PF_EXCLUDES(mutex_);
  void OnPieceDelivered(const Piece& piece, const Status& status, const CopyTime& time) PF_EXCLUDES(mutex_);

  FillContext& context_;
  Owner& owner_;
  const uint32_t slot_;
  const BatchPlan plan_;
  const uint64_t planned_ns_;       // 0: nobody traced
  size_t next_ = 0;                 // piece to request; guarded by the owner's lock
  uint32_t delivered_samples_ = 0;  // of earlier pieces; of the thread that delivers
  // Under on_bad_sample = fail: later samples need not be filled.
  std::atomic<uint32_t> first_failed_{UINT32_MAX};
  std::vector<PieceState> pieces_;
  Mutex mutex_;
  DeliveryOrder order_ PF_GUARDED_BY(mutex_);
  size_t undelivered_ PF_GUARDED_BY(mutex_);
  Status delivery_ PF_GUARDED_BY(mutex_);                 // the first error
  Status production_ PF_GUARDED_BY(mutex_);               // the first error
  std::map<uint32_t, Status> bad_ PF_GUARDED_BY(mutex_);  // by index in the batch; the first kMaxBadNotes
  std::vector<bool> more_bad_ PF_GUARDED_BY(mutex_);      // see FillResult
  std::set<uint32_t> left_out_ PF_GUARDED_BY(mutex_);     // indexes in the batch
};

}  // namespace pinfeed
