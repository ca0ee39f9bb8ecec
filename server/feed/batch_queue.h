// SPDX-License-Identifier: Apache-2.0
// The batches of a feed, from planning until their slot is free again. In: plans, results of filling and of
// delivery. Out: pieces to request and batches to publish, both in plan order.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/wire/shared_page.h"
#include "server/feed/stall.h"
#include "server/loading/batch_fill.h"
#include "server/loading/batch_producer.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: stores the batch of each slot, and the order in which planned batches are published. Threads: one
// at a time; the feed's lock guards it. Errors: none.
class BatchQueue {
 public:
  // The batch of a slot, from FILLING on.
  struct Batch {
    BatchPlan plan;
    std::chrono::steady_clock::time_point planned;
    FillResult result;
    bool delivering = false;    // filled, and being delivered to where clients see it; see MarkFilled
    bool undelivered = false;   // its delivery failed
    uint64_t number = 0;        // of those planned: the same in every slot that is filled with it
    uint32_t replacements = 0;  // how often it was moved to another slot
  };

  // Appends a planned batch and the filling of its slot.
  void Push(uint32_t slot, const BatchPlan& plan, std::chrono::steady_clock::time_point now,
            std::shared_ptr<BatchFill> fill) {
    batches_[slot] = Batch{.plan = plan, .planned = now, .result = {}, .number = ++planned_};
    ++filling_;
    unpublished_.push_back(slot);
    unrequested_.push_back(std::move(fill));
  }
  // Moves a batch that is being filled to another slot, where `fill` fills it anew.
  void Move(uint32_t from, uint32_t to, std::shared_ptr<BatchFill> fill) {
    batches_[to] = Batch{.plan = batches_[from].plan,
                         .planned = batches_[from].planned,
                         .result = {},
                         .number = batches_[from].number,
                         .replacements = batches_[from].replacements + 1};
    std::ranges::replace(unpublished_, from, to);
    unrequested_.push_front(std::move(fill));
  }
  // Moves a batch back to a slot from which it was moved, and which is filled now.
  void MoveBack(uint32_t from, uint32_t to) { std::ranges::replace(unpublished_, from, to); }
  // The slot that now has the batch of `slot`, which may have been moved; nothing if it was published.
  std::optional<uint32_t> Current(uint32_t slot) const {
    const auto found = std::ranges::find(unpublished_, batches_[slot].number,
                                         [&](uint32_t other) { return batches_[other].number; });
    return found == unpublished_.end() ? std::nullopt : std::optional(*found);
  }
  // The slot is filled, and its batch was not moved to another one.
  void MarkFilled(uint32_t slot, FillResult result) {
    batches_[slot].delivering = true;
    batches_[slot].result = std::move(result);
    --filling_;
  }
  Batch& operator[](uint32_t slot) { return batches_[slot]; }
  const Batch& operator[](uint32_t slot) const { return batches_[slot]; }

  // These use the queue of slots whose batches are planned and not published.
  bool empty() const { return unpublished_.empty(); }
  uint32_t front() const { return unpublished_.front(); }
  void Pop() { unpublished_.pop_front(); }

  // The number of those that are not filled.
  size_t filling() const { return filling_; }

  // Returns the next pieces to request, as many as the arena has memory for now. While pieces remain, the
  // next completed delivery frees memory for one.
  std::vector<std::shared_ptr<PieceRequest>> TakeRequests() {
    std::vector<std::shared_ptr<PieceRequest>> requests;
    while (!unrequested_.empty()) {
      std::shared_ptr<PieceRequest> request = unrequested_.front()->NextRequest();
      if (request == nullptr) break;
      if (requests.empty()) requests.reserve(unrequested_.size());
      requests.push_back(std::move(request));
      if (unrequested_.front()->all_requested()) unrequested_.pop_front();
    }
    return requests;
  }
  // Whether any piece is not requested yet.
  bool has_unrequested() const { return !unrequested_.empty(); }

  // Why the next batch is not published yet; nothing if it is being loaded. `filling`: whether any piece is
  // requested and not filled.
  std::optional<StallCause> Cause(bool filling) const {
    if (unpublished_.empty()) return StallCause::kConsumer;
    // All memory for filling is taken and filled, so copies delay even the pieces that are not requested yet.
    const bool copying = !unrequested_.empty() && !filling;
    if (batches_[unpublished_.front()].delivering || copying) return StallCause::kCopy;
    return std::nullopt;
  }

 private:
  std::array<Batch, kMaxSlots> batches_;
  uint64_t planned_ = 0;
  size_t filling_ = 0;
  std::deque<uint32_t> unpublished_;                    // slots, in plan order
  std::deque<std::shared_ptr<BatchFill>> unrequested_;  // fillings with pieces to request, in plan order
};

}  // namespace pinfeed
