// SPDX-License-Identifier: Apache-2.0
#include "server/feed/batch_planner.h"

namespace pinfeed {

void BatchPlanner::GoBackTo(Start start) {
  if (start >= first_) return;
  detours_.push_back({first_, next_});
  first_ = next_ = start;
}

BatchPlan BatchPlanner::Plan() {
  const BatchPlan plan = sampler_.Plan(next_.epoch, next_.batch_index);
  next_ = plan.last_of_epoch ? Start{next_.epoch + 1, 0} : Start{next_.epoch, next_.batch_index + 1};
  if (!detours_.empty() && next_ >= detours_.back().end) {
    next_ = detours_.back().resume;
    detours_.pop_back();
  }
  return plan;
}

}  // namespace pinfeed
