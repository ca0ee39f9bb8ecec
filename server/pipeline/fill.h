// SPDX-License-Identifier: Apache-2.0
// One batch on its way into its slot. In: a plan and a free slot. Out: the slot filled, or the reason why
// not.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "server/pipeline/feed.h"

namespace pinfeed {

// Purpose: loads the samples of one batch straight into their places. Owns: a share of its feed, so that the
// arena outlives every write. Threads: Run from several workers for disjoint ranges; Done once, after all of
// them. Errors: a bad sample is failed, skipped or zeroed as the spec says. Which one fails the batch does
// not depend on the workers: the first.
class Feed::Fill final : public FillTask {
 public:
  Fill(std::shared_ptr<Feed> feed, uint32_t slot, const BatchPlan& plan)
      : FillTask(feed->share_.share(), plan.samples, feed->grain_),
        feed_(std::move(feed)),
        slot_(slot),
        plan_(plan),
        planned_ns_(feed_->trace_.On() ? TraceClockNs() : 0) {}

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) override;
  void Done() override;

 private:
  void Bad(uint32_t index, Status status) PF_EXCLUDES(mutex_);
  // Where tensor `t` of the sample at `index` of the batch lies.
  std::span<std::byte> Place(size_t t, uint32_t index) const;
  // Closes the gaps that skipped samples left; returns how many samples remain.
  uint32_t Compact(const std::map<uint32_t, Status>& bad) const;

  const std::shared_ptr<Feed> feed_;
  const uint32_t slot_;
  const BatchPlan plan_;
  const uint64_t planned_ns_;  // 0: nobody traced
  std::atomic<uint32_t> first_failed_{
      UINT32_MAX};  // under on_bad_sample = fail: later samples need not be loaded
  Mutex mutex_;
  Status memory_ PF_GUARDED_BY(mutex_);                   // of the slot
  std::map<uint32_t, Status> bad_ PF_GUARDED_BY(mutex_);  // by index in the batch
};

}  // namespace pinfeed
