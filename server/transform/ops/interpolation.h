// SPDX-License-Identifier: Apache-2.0
// The parameter that Resize and RandomResizedCrop share: interpolation.
#pragma once

#include <vector>

#include "common/base/sample_random.h"
#include "server/image/resize.h"
#include "server/transform/transform_parameter_reader.h"

namespace pinfeed {

// Purpose: one filter, or several, of which each sample gets a random one. A value.
class InterpolationChoice {
 public:
  explicit InterpolationChoice(TransformParameterReader& parameters);

  // Whether there is a choice.
  bool Varies() const { return choices_.size() > 1; }
  // Draws only if there is a choice.
  Interpolation Of(SampleRandom& random) const {
    return choices_.size() == 1 ? choices_.front()
                                : choices_[random.Below(static_cast<uint32_t>(choices_.size()))];
  }

 private:
  std::vector<Interpolation> choices_;  // not empty
};

}  // namespace pinfeed
