// SPDX-License-Identifier: Apache-2.0
#include "server/order/sampler.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: keeps the orders of three epochs. At an epoch boundary, batches of both epochs are loaded, and the
// places of samples are asked for in the one behind. Threads: any.
class Sampler::Orders {
 public:
  Orders(uint64_t samples, uint64_t seed) : samples_(samples), seed_(seed) {}

  std::shared_ptr<const Permutation> Of(uint64_t epoch) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    Entry& entry = entries_[epoch % entries_.size()];
    // Computed under the lock: other threads that need the same order would only compute it again.
    if (entry.order == nullptr || entry.epoch != epoch) {
      entry.order = std::make_shared<const Permutation>(samples_, seed_, epoch);
      entry.epoch = epoch;
    }
    return entry.order;
  }

 private:
  struct Entry {
    uint64_t epoch = 0;
    std::shared_ptr<const Permutation> order;
  };
  const uint64_t samples_;
  const uint64_t seed_;
  Mutex mutex_;
  std::array<Entry, 3> entries_ PF_GUARDED_BY(mutex_);
};

void BatchSamples::CopyTo(uint32_t first, std::span<uint32_t> ids) const {
  // A batch may go on at the epoch's start.
  for (uint64_t position = (first_ + first) % dataset_samples_; !ids.empty(); position = 0) {
    const std::span<uint32_t> run = ids.first(std::min<uint64_t>(ids.size(), dataset_samples_ - position));
    if (order_ == nullptr)
      std::iota(run.begin(), run.end(), static_cast<uint32_t>(position));
    else
      order_->CopyTo(position, run);
    ids = ids.subspan(run.size());
  }
}

Result<Sampler> Sampler::Create(const FeedSpec& spec, uint64_t dataset_samples) {
  PF_CHECK(spec.batch_size != 0 && spec.rank < spec.world_size, "the spec was not checked");
  if (dataset_samples == 0) return InvalidArgument("dataset: it has no samples");
  Sampler sampler;
  sampler.samples_ = dataset_samples;
  sampler.batch_size_ = spec.batch_size;
  sampler.global_batch_ = uint64_t{spec.batch_size} * spec.world_size;  // 32 bits times 32 bits fit
  sampler.rank_ = spec.rank;
  sampler.world_size_ = spec.world_size;
  sampler.seed_ = spec.seed;
  if (spec.order == Order::kShuffle) sampler.orders_ = std::make_shared<Orders>(dataset_samples, spec.seed);
  const uint64_t whole = dataset_samples / sampler.global_batch_;
  const bool rest = dataset_samples % sampler.global_batch_ != 0;
  sampler.batches_per_epoch_ = whole + (rest && !spec.drop_last ? 1 : 0);
  if (sampler.batches_per_epoch_ == 0) {
    return InvalidArgument("batch_size: " + std::to_string(spec.batch_size) + " times world_size " +
                           std::to_string(spec.world_size) + " is more than the dataset's " +
                           std::to_string(dataset_samples) +
                           " samples, and drop_last drops incomplete batches");
  }
  return sampler;
}

Result<Sampler::Start> Sampler::Resume(const Cursor& cursor) const {
  const bool shuffles = orders_ != nullptr;
  if (cursor.order && (*cursor.order == Order::kShuffle) != shuffles) {
    const auto name = [](bool shuffle) { return shuffle ? "shuffled" : "sequential"; };
    return InvalidArgument(
        std::string("cursor.order: the state is of a ") + name(!shuffles) + " feed, this one is " +
        name(shuffles) + ", so its position refers to other samples; open the feed with the original order");
  }
  if (shuffles && cursor.seed != seed_) {
    return InvalidArgument("cursor.seed: the state is of a feed shuffled with seed " +
                           std::to_string(cursor.seed) + ", this one has seed " + std::to_string(seed_) +
                           ", so its position refers to other samples; open the feed with the original seed");
  }
  if (cursor.epoch > kMaxEpoch) {
    return InvalidArgument("cursor.epoch: " + std::to_string(cursor.epoch) +
                           " is above the largest possible epoch, " + std::to_string(kMaxEpoch));
  }
  const uint64_t batches = cursor.position / global_batch_;
  // The end of an epoch: after the last whole batch (drop_last) or after the last sample.
  const bool at_end =
      cursor.position == samples_ || (batches == batches_per_epoch_ && cursor.position % global_batch_ == 0);
  if (at_end) return Start{cursor.epoch + 1, 0};
  if (cursor.position > samples_ || cursor.position % global_batch_ != 0) {
    return InvalidArgument("cursor: position " + std::to_string(cursor.position) +
                           " is not a boundary between global batches of " + std::to_string(global_batch_) +
                           " samples in an epoch of " + std::to_string(samples_) +
                           "; resume with the same batch_size * world_size");
  }
  if (batches >= batches_per_epoch_) return Start{cursor.epoch + 1, 0};
  if (shuffles && batches > 0 && cursor.version < kCursorVersion) {
    return InvalidArgument(
        "cursor.version: the state was written by an earlier pinfeed within a shuffled epoch, and this "
        "version shuffles in another order, so the rest of epoch " +
        std::to_string(cursor.epoch) + " would contain other samples; restart the epoch with set_epoch(" +
        std::to_string(cursor.epoch) + "), or finish it with the earlier version");
  }
  return Start{cursor.epoch, batches};
}

BatchPlan Sampler::Plan(uint64_t epoch, uint64_t batch_index) const {
  PF_CHECK(batch_index < batches_per_epoch_, "no such batch in the epoch");
  BatchPlan plan{
      .epoch = epoch, .batch_index = batch_index, .last_of_epoch = batch_index + 1 == batches_per_epoch_};
  const uint64_t begin = batch_index * global_batch_;
  const uint64_t in_batch = std::min(global_batch_, samples_ - begin);
  plan.next_position = begin + in_batch;
  plan.samples = static_cast<uint32_t>(
      in_batch == global_batch_ ? batch_size_ : (in_batch + world_size_ - 1) / world_size_);
  return plan;
}

BatchSamples Sampler::SamplesOf(const BatchPlan& plan) const {
  // A rank's block has batch_size samples in a whole batch and plan.samples in an incomplete one. In both
  // cases that equals plan.samples.
  const uint64_t first = plan.batch_index * global_batch_ + rank_ * plan.samples;
  return {orders_ == nullptr ? nullptr : orders_->Of(plan.epoch), first, samples_};
}

std::optional<uint64_t> Sampler::PositionOf(uint64_t epoch, uint64_t sample) const {
  const uint64_t position = orders_ == nullptr ? sample : orders_->Of(epoch)->PositionOf(sample);
  const uint64_t batch = position / global_batch_;
  if (batch >= batches_per_epoch_) return std::nullopt;
  if (position % global_batch_ / Plan(epoch, batch).samples != rank_) return std::nullopt;
  return position;
}

}  // namespace pinfeed
