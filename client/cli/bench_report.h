// SPDX-License-Identifier: Apache-2.0
// The measurements of `pinfeed bench`. In: one call per batch. Out: rates, percentiles, and what the daemon
// says the feed is bound on.
#pragma once

#include <cstdint>
#include <vector>

#include "client/cli/json_field.h"

namespace pinfeed {

// Purpose: collects the figures of one run. Copyable. Threads: one.
class BenchReport {
 public:
  // Adds a batch. `took_ns` is how long the call took; for a batch that was ready, that is the hand-off only.
  void Add(uint64_t samples, uint64_t bytes, uint64_t took_ns, bool was_ready);
  void SetOpened(uint64_t open_ns, uint64_t first_batch_ns);
  void SetElapsed(uint64_t elapsed_ns) { elapsed_ns_ = elapsed_ns; }
  // The feed's entry of pinfeed.v1.GetStatusResponse, for the stall attribution. May be null.
  void SetFeedStatus(Json feed) { feed_status_ = std::move(feed); }

  uint64_t batches() const { return batches_; }
  uint64_t samples() const { return samples_; }

  Json ToJson() const;
  void Print() const;

 private:
  uint64_t batches_ = 0;
  uint64_t samples_ = 0;
  uint64_t bytes_ = 0;
  uint64_t wait_ns_ = 0;
  uint64_t open_ns_ = 0;
  uint64_t first_batch_ns_ = 0;
  uint64_t elapsed_ns_ = 0;
  std::vector<uint64_t> ready_ns_;  // of batches that were ready; bounded
  Json feed_status_;
};

}  // namespace pinfeed
