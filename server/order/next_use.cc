// SPDX-License-Identifier: Apache-2.0
#include "server/order/next_use.h"

#include "common/base/status.h"

namespace pinfeed {

NextUse::NextUse(const FeedSpec& spec, uint64_t dataset_samples)
    : samples_(dataset_samples),
      batch_size_(spec.batch_size),
      world_size_(spec.world_size),
      rank_(spec.rank),
      epochs_(spec.epochs),
      seed_(spec.seed),
      drop_last_(spec.drop_last),
      shuffles_(spec.order == Order::kShuffle) {
  PF_CHECK(batch_size_ != 0 && rank_ < world_size_ && samples_ != 0, "the spec was not checked");
}

std::optional<uint64_t> NextUse::After(const Place& now, uint64_t sample) const {
  for (uint64_t ahead = 0; ahead < 2; ++ahead) {
    const uint64_t epoch = now.epoch + ahead;
    if (epochs_ != 0 && epoch >= epochs_) return std::nullopt;
    const uint64_t position = PositionIn(epoch, sample);
    if (!IsRead(position) || (ahead == 0 && position < now.position)) continue;
    return ahead * samples_ + position - now.position;
  }
  return 2 * samples_ - now.position;
}

uint64_t NextUse::PositionIn(uint64_t epoch, uint64_t sample) const {
  if (!shuffles_) return sample;
  std::shared_ptr<const Permutation> inverse;
  {
    const MutexLock lock(mutex_);
    RecentOrder& order = recent_[epoch % recent_.size()];
    // Under the lock: other threads that need the same order would only compute it again.
    if (order.inverse == nullptr || order.epoch != epoch) {
      order = {epoch,
               std::make_shared<const Permutation>(samples_, seed_, epoch, Permutation::Inverse::kYes)};
    }
    inverse = order.inverse;
  }
  return inverse->PositionOf(sample);
}

bool NextUse::IsRead(uint64_t position) const {
  const uint64_t global_batch = batch_size_ * world_size_;
  const uint64_t begin = position / global_batch * global_batch;
  if (samples_ - begin >= global_batch) return (position - begin) / batch_size_ == rank_;
  if (drop_last_) return false;
  const uint64_t share = (samples_ - begin + world_size_ - 1) / world_size_;
  return (position - begin) / share == rank_;
}

}  // namespace pinfeed
