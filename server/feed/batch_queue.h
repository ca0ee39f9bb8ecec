// SPDX-License-Identifier: Apache-2.0
// The batches of a feed from their plan until their slot is free again. In: plans, results of filling and of
// delivery. Out: pieces to request and batches to publish, both in plan order.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "common/wire/shared_page.h"
#include "server/feed/stall.h"
#include "server/loading/batch_fill.h"
#include "server/loading/batch_producer.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: what each slot's batch is, and the order in which the planned ones are published. Threads:
// OnPieceFilled from any thread; the feed's lock guards the rest. Errors: none.
class BatchQueue {
 public:
  // What a slot holds from FILLING on.
  struct Batch {
    BatchPlan plan;
    std::chrono::steady_clock::time_point planned;
    FillResult result;
    bool delivering = false;   // filled, on its way to where the clients see it
    bool undelivered = false;  // its arena delivers nothing any more
  };

  // Appends a planned batch and the filling of its slot.
  void Push(uint32_t slot, const BatchPlan& plan, std::chrono::steady_clock::time_point now,
            std::shared_ptr<BatchFill> fill) {
    batches_[slot] = Batch{plan, now, {}};
    unpublished_.push_back(slot);
    unrequested_.push_back(std::move(fill));
  }
  Batch& operator[](uint32_t slot) { return batches_[slot]; }
  const Batch& operator[](uint32_t slot) const { return batches_[slot]; }

  // Batches planned and not published. / The slot of the first of them. / Takes that one out.
  bool empty() const { return unpublished_.empty(); }
  uint32_t front() const { return unpublished_.front(); }
  void Pop() { unpublished_.pop_front(); }

  // The next piece to request; null when the arena has no memory for it now, or all are requested.
  std::shared_ptr<PieceRequest> NextRequest() {
    if (unrequested_.empty()) return nullptr;
    std::shared_ptr<PieceRequest> request = unrequested_.front()->NextRequest();
    if (request == nullptr) return nullptr;
    pieces_filling_.fetch_add(1, std::memory_order_relaxed);
    if (unrequested_.front()->all_requested()) unrequested_.pop_front();
    return request;
  }
  // Whether some piece is still to be requested.
  bool has_unrequested() const { return !unrequested_.empty(); }
  void OnPieceFilled() { pieces_filling_.fetch_sub(1, std::memory_order_relaxed); }

  // Why the next batch is not published. Nothing: it is being loaded.
  std::optional<StallCause> Cause() const {
    if (unpublished_.empty()) return StallCause::kConsumer;
    // All memory to fill is taken and what is in it is loaded: copies hold up even what is not loaded yet.
    const bool copying = !unrequested_.empty() && pieces_filling_.load(std::memory_order_relaxed) == 0;
    if (batches_[unpublished_.front()].delivering || copying) return StallCause::kCopy;
    return std::nullopt;
  }

 private:
  std::array<Batch, kMaxSlots> batches_;
  std::deque<uint32_t> unpublished_;                    // slots, in plan order
  std::deque<std::shared_ptr<BatchFill>> unrequested_;  // with pieces to request, in plan order
  std::atomic<uint32_t> pieces_filling_{0};             // requested and not filled
};

}  // namespace pinfeed
