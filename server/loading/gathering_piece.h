// SPDX-License-Identifier: Apache-2.0
// A piece of a batch whose samples are not all known when their loading begins. In: the piece, the loads of
// its samples, the batch's close. Out: the piece's end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/base/first_error.h"
#include "common/base/status.h"
#include "server/loading/batch_producer.h"

namespace pinfeed {

// Purpose: completes a piece once its batch is closed and every load of its samples has ended. Owns: the
// request, which keeps the feed alive and so its producer. Threads: any. Errors: the first of a load is that
// of the piece. Invariant: no load begins after Close.
class GatheringPiece {
 public:
  explicit GatheringPiece(std::shared_ptr<PieceRequest> request) : request_(std::move(request)) {}

  const PieceRequest& request() const { return *request_; }
  // A load of some of its samples begins. It ends once, whatever becomes of it.
  void BeginLoad() { under_way_.fetch_add(1, std::memory_order_relaxed); }
  void EndLoad(Status status) {
    error_.Set(std::move(status));
    EndOne();
  }
  // There are no more samples than those whose loads were begun, and of these, not those `left_out`: indexes
  // in the batch. Called once.
  void Close(std::span<const uint32_t> left_out) {
    for (const uint32_t index : left_out) request_->LeaveOut(index);
    EndOne();
  }

 private:
  void EndOne() {
    if (under_way_.fetch_sub(1, std::memory_order_acq_rel) == 1) request_->Complete(error_.Get());
  }

  const std::shared_ptr<PieceRequest> request_;
  std::atomic<uint32_t> under_way_{1};  // loads, and the gathering until Close
  FirstError error_;
};

}  // namespace pinfeed
