// SPDX-License-Identifier: Apache-2.0
// Masks: tensors with one value for each pixel of an image. In: a mask and the geometry of its
// image. Out: the mask with the same crops, resizes and flips.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "server/transform/field_roles.h"
#include "server/transform/geometry_plan.h"

namespace pinfeed {

// Purpose: working memory of TransformMask. Threads: one at a time.
struct MaskScratch {
  std::vector<int32_t> columns;  // the source column of each output column; -1: padding
  std::vector<int32_t> rows;     // the source row of each output row
};

// Whether the plan does not change an image of `size`.
bool IsIdentity(const GeometryPlan& plan, ImageSize size);

// Applies the plan to `source`, the mask of an image of `size`, and writes the result to `out`. Uses nearest
// resampling: each value of `out` is one of `source`, or zero where a crop extends beyond the image. Chooses
// the same pixels as torchvision.transforms.v2 for a tv_tensors.Mask (InterpolationMode.NEAREST on tensors).
// Preconditions: the sizes of `source` and `out` are those of the mask's layout with the height and width
// before and after the plan.
void TransformMask(const MaskField& mask, const GeometryPlan& plan, ImageSize size,
                   std::span<const std::byte> source, std::span<std::byte> out, MaskScratch& scratch);

}  // namespace pinfeed
