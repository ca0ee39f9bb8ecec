// SPDX-License-Identifier: Apache-2.0
// Which samples make up which batch: a pure function of (seed, epoch, position).
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "server/order/permutation.h"

namespace pinfeed {

// One batch of one rank, before its samples are known.
struct BatchPlan {
  uint64_t epoch = 0;
  uint64_t batch_index = 0;    // within the epoch
  uint64_t next_position = 0;  // global sample position after this batch
  uint32_t samples = 0;        // for this rank; >= 1
  bool last_of_epoch = false;
};

// Purpose: the dataset indexes of one batch's samples. Shares the epoch's order. Threads: immutable.
class BatchSamples {
 public:
  // `order` is null for the dataset's own order.
  BatchSamples(std::shared_ptr<const Permutation> order, uint64_t first_position, uint64_t dataset_samples)
      : order_(std::move(order)), first_(first_position), dataset_samples_(dataset_samples) {}

  // Precondition: i < plan.samples.
  uint64_t operator[](uint32_t i) const {
    const uint64_t at = first_ + i;
    const uint64_t position = at < dataset_samples_ ? at : at % dataset_samples_;
    return order_ == nullptr ? position : (*order_)(position);
  }
  // Those from `first` on. Preconditions: first + ids.size() <= plan.samples; the dataset has at most 2^32
  // samples.
  void CopyTo(uint32_t first, std::span<uint32_t> ids) const;

 private:
  std::shared_ptr<const Permutation> order_;
  uint64_t first_;
  uint64_t dataset_samples_;
};

// Purpose: the order of a feed's samples. Batch k of an epoch covers global positions [k*G, (k+1)*G), with G
// = batch_size * world_size. Rank r takes the r-th block of batch_size. The last, incomplete global batch is
// dropped (drop_last) or divided evenly: every rank gets ceil(rest / world_size) samples. Missing samples are
// repeated from the epoch's start, so that every rank has the same number of batches.
// Owns: the orders of three epochs, those of the last requests; copies share them. Threads: all methods from
// any thread. Invariants:
// 1. The ids of an epoch's positions 0..N-1 are a permutation of 0..N-1.
// 2. The concatenation of batch k over all ranks depends only on batch_size * world_size, not on world_size.
class Sampler {
 public:
  // kInvalidArgument when the dataset is empty, or too small for one batch with drop_last. Precondition:
  // CheckFeedSpec found no fault.
  static Result<Sampler> Create(const FeedSpec& spec, uint64_t dataset_samples);

  uint64_t batches_per_epoch() const { return batches_per_epoch_; }
  uint64_t global_batch() const { return global_batch_; }

  // The epoch and batch index at which `cursor` resumes. The epoch is at most kMaxEpoch + 1. kInvalidArgument
  // when:
  // - the position is not a batch boundary (another global batch size) or is beyond the epoch's end;
  // - the epoch is above kMaxEpoch;
  // - the order, or the seed of a shuffled feed, differs from the spec;
  // - an older version shuffled the rest of the epoch in another order.
  struct Start {
    uint64_t epoch;
    uint64_t batch_index;
    auto operator<=>(const Start&) const = default;
  };
  Result<Start> Resume(const Cursor& cursor) const;

  // Precondition: batch_index < batches_per_epoch().
  BatchPlan Plan(uint64_t epoch, uint64_t batch_index) const;
  // The first call in an epoch computes its order: see Permutation.
  BatchSamples SamplesOf(const BatchPlan& plan) const;
  // The position in the epoch at which this rank loads the sample, repetitions aside. Empty: it does not.
  // Precondition: sample < dataset_samples.
  std::optional<uint64_t> PositionOf(uint64_t epoch, uint64_t sample) const;

  uint64_t samples() const { return samples_; }

 private:
  class Orders;
  Sampler() = default;
  uint64_t samples_ = 0;
  uint64_t batch_size_ = 0;
  uint64_t global_batch_ = 0;
  uint64_t batches_per_epoch_ = 0;
  uint64_t rank_ = 0;
  uint64_t world_size_ = 1;
  uint64_t seed_ = 0;
  std::shared_ptr<Orders> orders_;  // null: samples are in the dataset's order
};

}  // namespace pinfeed
