// SPDX-License-Identifier: Apache-2.0
// The bad samples of a feed. In: results of filling. Out: log lines, the newest notes, and the error of a
// feed without good samples.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/spec/feed_spec.h"
#include "server/loading/batch_fill.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: logs each bad sample of a feed, at a limited rate, since the feed keeps only the newest. Threads:
// any. Errors: none.
class BadSampleLog {
 public:
  explicit BadSampleLog(uint64_t feed) : feed_(feed) {}
  void Log(const std::vector<BadSampleNote>& bad);

 private:
  const uint64_t feed_;
  std::atomic<uint64_t> logged_{0};
};

// Purpose: counts bad samples and keeps the newest. Threads: one at a time; the feed's lock guards it.
// Errors: kDataLoss, see CheckBatch.
class BadSamples {
 public:
  // `batches_per_epoch`: of this rank. `ranks`: the other ranks of a short epoch may well have good samples.
  BadSamples(OnBadSample choice, uint64_t batches_per_epoch, uint32_t ranks)
      : choice_(choice), batches_per_epoch_(batches_per_epoch), ranks_(ranks) {}

  void Add(const FillResult& result);
  // kDataLoss for the batch that completes a whole epoch without a good sample; of several ranks, as many
  // epochs in a row. Call for each batch, in order.
  Status CheckBatch(const BatchPlan& plan, const FillResult& result);

  uint64_t count() const { return count_; }
  const std::vector<BadSampleNote>& newest() const { return newest_; }

 private:
  const OnBadSample choice_;
  const uint64_t batches_per_epoch_;
  const uint32_t ranks_;
  uint64_t count_ = 0;
  std::vector<BadSampleNote> newest_;
  uint64_t bad_batches_ = 0;  // without a good sample, one after the other
  std::string first_reason_;  // the first reason in those batches
};

}  // namespace pinfeed
