// SPDX-License-Identifier: Apache-2.0
// Which samples make up which batch: pure arithmetic on (seed, epoch, position), no state and no list of N.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "common/feed_spec.h"
#include "common/result.h"

namespace pinfeed {

// One batch of one rank, before its samples are known.
struct BatchPlan {
  uint64_t epoch = 0;
  uint64_t batch_index = 0;    // within the epoch
  uint64_t next_position = 0;  // global samples of the epoch consumed once this batch is
  uint32_t samples = 0;        // of this rank; >= 1
  bool last_of_epoch = false;
};

// Purpose: the order of a feed. Batch k of an epoch covers global positions [k*G, (k+1)*G), G = batch_size *
// world_size; rank r takes the r-th block of batch_size. The last, incomplete global batch is left out
// (drop_last) or spread evenly: every rank gets ceil(rest / world_size) samples, the missing ones taken again
// from the epoch's start, so that no rank has a batch more than another. Threads: immutable; all methods are
// const and may be called from any thread. Invariants: 1. the ids of an epoch's positions 0..N-1 are a
// permutation of 0..N-1; 2. the concatenation over ranks of batch k depends on batch_size * world_size only,
// not on world_size.
class Sampler {
 public:
  // kInvalidArgument when the dataset is empty, or too small for one batch (drop_last). Precondition:
  // CheckFeedSpec found no fault.
  static Result<Sampler> Create(const FeedSpec& spec, uint64_t dataset_samples);

  uint64_t batches_per_epoch() const { return batches_per_epoch_; }
  uint64_t global_batch() const { return global_batch_; }

  // The epoch and batch index at which `cursor` resumes; the epoch is at most kMaxEpoch + 1. kInvalidArgument
  // when its position is no batch border (another global batch size) or lies behind the epoch's end, its
  // epoch is above kMaxEpoch, its order is not the spec's, or its seed is not the spec's though that
  // shuffles.
  struct Start {
    uint64_t epoch;
    uint64_t batch_index;
    auto operator<=>(const Start&) const = default;
  };
  Result<Start> Resume(const Cursor& cursor) const;

  // Precondition: batch_index < batches_per_epoch().
  BatchPlan Plan(uint64_t epoch, uint64_t batch_index) const;
  // Dataset index of sample `i` of the batch. Precondition: i < plan.samples.
  uint64_t SampleId(const BatchPlan& plan, uint32_t i) const;

 private:
  Sampler() = default;
  uint64_t samples_ = 0;
  uint64_t batch_size_ = 0;
  uint64_t global_batch_ = 0;
  uint64_t batches_per_epoch_ = 0;
  uint64_t rank_ = 0;
  uint64_t world_size_ = 1;
  uint64_t seed_ = 0;
  bool shuffle_ = false;
};

}  // namespace pinfeed
