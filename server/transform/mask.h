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
  std::vector<int32_t> columns;  // for each column of the output, that of the source; -1: added by padding
  std::vector<int32_t> rows;     // the same for each row
};

// Whether the plan leaves an image of `size` as it is.
bool IsIdentity(const GeometryPlan& plan, ImageSize size);

// Writes the mask `source` of an image of `size` to `out` as the plan moves the image's pixels, by nearest
// resampling: each value of `out` is one of `source`, or zero where a crop reaches over the border. It
// chooses the pixels that torchvision.transforms.v2 chooses for a tv_tensors.Mask (InterpolationMode.NEAREST
// on tensors). Preconditions: the sizes of `source` and `out` are those of the mask's layout with the height
// and width before and after the plan.
void TransformMask(const MaskField& mask, const GeometryPlan& plan, ImageSize size,
                   std::span<const std::byte> source, std::span<std::byte> out, MaskScratch& scratch);

}  // namespace pinfeed
