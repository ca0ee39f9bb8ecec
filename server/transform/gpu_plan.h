// SPDX-License-Identifier: Apache-2.0
// The geometry of one image for the client's GPU. In: a plan. Out: the same as an ImagePlan, if it fits one.
#pragma once

#include <optional>

#include "common/wire/image_plan.h"
#include "server/transform/geometry_plan.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

// Nothing if the plan is more than a crop, a grayscale, a resize and a crop of its result, or pads. The
// horizontal flip is left out: the sample's mark has it. `size`: of the stored image.
std::optional<ImagePlan> PlanForGpu(const GeometryPlan& plan, ImageSize size);

// Whether any image can have a plan that fits. Tries sizes and random numbers: what fits none of them, such
// as a Pad or two resizes, is not worth a decoder.
bool MayFitGpu(const TransformChain& transforms);

}  // namespace pinfeed
