// SPDX-License-Identifier: Apache-2.0
#include "server/order/next_use.h"

namespace pinfeed {

NextUse::NextUse(const FeedSpec& spec, uint64_t dataset_samples)
    : sampler_(Sampler::Create(spec, dataset_samples).value()), epochs_(spec.epochs) {}

std::optional<uint64_t> NextUse::After(const Place& now, uint64_t sample) const {
  const uint64_t samples = sampler_.samples();
  for (uint64_t ahead = 0; ahead < 2; ++ahead) {
    const uint64_t epoch = now.epoch + ahead;
    if (epochs_ != 0 && epoch >= epochs_) return std::nullopt;
    const std::optional<uint64_t> position = sampler_.PositionOf(epoch, sample);
    if (position && (ahead != 0 || *position >= now.position))
      return ahead * samples + *position - now.position;
  }
  return 2 * samples - now.position;
}

}  // namespace pinfeed
