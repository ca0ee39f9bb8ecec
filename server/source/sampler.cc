// SPDX-License-Identifier: Apache-2.0
#include "server/source/sampler.h"

#include <algorithm>
#include <string>

#include "server/source/permutation.h"

namespace pinfeed {

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
  sampler.shuffle_ = spec.order == Order::kShuffle;
  const uint64_t whole = dataset_samples / sampler.global_batch_;
  const bool rest = dataset_samples % sampler.global_batch_ != 0;
  sampler.batches_per_epoch_ = whole + (rest && !spec.drop_last ? 1 : 0);
  if (sampler.batches_per_epoch_ == 0) {
    return InvalidArgument("batch_size: " + std::to_string(spec.batch_size) + " times world_size " +
                           std::to_string(spec.world_size) + " is more than the dataset's " +
                           std::to_string(dataset_samples) +
                           " samples, and drop_last leaves out incomplete batches");
  }
  return sampler;
}

Result<Sampler::Start> Sampler::Resume(const Cursor& cursor) const {
  if (cursor.order && (*cursor.order == Order::kShuffle) != shuffle_) {
    const auto name = [](bool shuffle) { return shuffle ? "shuffled" : "sequential"; };
    return InvalidArgument(std::string("cursor.order: the state is of a ") + name(!shuffle_) +
                           " feed, this one is " + name(shuffle_) +
                           ", so its position means other samples; open the feed with the order it had");
  }
  if (shuffle_ && cursor.seed != seed_) {
    return InvalidArgument("cursor.seed: the state is of a feed shuffled with seed " +
                           std::to_string(cursor.seed) + ", this one has seed " + std::to_string(seed_) +
                           ", so its position means other samples; open the feed with the seed it had");
  }
  if (cursor.epoch > kMaxEpoch) {
    return InvalidArgument("cursor.epoch: " + std::to_string(cursor.epoch) +
                           " is above the last epoch that there can be, " + std::to_string(kMaxEpoch));
  }
  const uint64_t batches = cursor.position / global_batch_;
  // The end of an epoch: behind the last whole batch (drop_last) or behind the last sample.
  const bool at_end =
      cursor.position == samples_ || (batches == batches_per_epoch_ && cursor.position % global_batch_ == 0);
  if (at_end) return Start{cursor.epoch + 1, 0};
  if (cursor.position > samples_ || cursor.position % global_batch_ != 0) {
    return InvalidArgument("cursor: position " + std::to_string(cursor.position) +
                           " is no border between global batches of " + std::to_string(global_batch_) +
                           " samples in an epoch of " + std::to_string(samples_) +
                           "; resume with the same batch_size * world_size");
  }
  if (batches >= batches_per_epoch_) return Start{cursor.epoch + 1, 0};
  return Start{cursor.epoch, batches};
}

BatchPlan Sampler::Plan(uint64_t epoch, uint64_t batch_index) const {
  PF_CHECK(batch_index < batches_per_epoch_, "no such batch in the epoch");
  BatchPlan plan;
  plan.epoch = epoch;
  plan.batch_index = batch_index;
  plan.last_of_epoch = batch_index + 1 == batches_per_epoch_;
  const uint64_t begin = batch_index * global_batch_;
  const uint64_t in_batch = std::min(global_batch_, samples_ - begin);
  plan.next_position = begin + in_batch;
  plan.samples = static_cast<uint32_t>(
      in_batch == global_batch_ ? batch_size_ : (in_batch + world_size_ - 1) / world_size_);
  return plan;
}

uint64_t Sampler::SampleId(const BatchPlan& plan, uint32_t i) const {
  // In a whole batch a rank's block is batch_size long, in an incomplete one plan.samples: either way
  // plan.samples.
  const uint64_t position = (plan.batch_index * global_batch_ + rank_ * plan.samples + i) % samples_;
  return shuffle_ ? Permutation(samples_, seed_, plan.epoch)(position) : position;
}

}  // namespace pinfeed
