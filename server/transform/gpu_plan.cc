// SPDX-License-Identifier: Apache-2.0
#include "server/transform/gpu_plan.h"

#include <array>

namespace pinfeed {
namespace {

bool LiesWithin(const Box& box, int32_t width, int32_t height) {
  return box.x >= 0 && box.y >= 0 && box.width > 0 && box.height > 0 && box.x <= width - box.width &&
         box.y <= height - box.height;
}

}  // namespace

std::optional<ImagePlan> PlanForGpu(const GeometryPlan& plan, ImageSize size) {
  const GeometryStep& first = plan.steps.front();
  const Box& crop = first.crop;
  if (plan.steps.size() > 2 || !LiesWithin(crop, size.width, size.height)) return std::nullopt;
  ImagePlan out{.kind = static_cast<uint32_t>(ImagePlanKind::kJpeg),
                .width = size.width,
                .height = size.height,
                .crop_x = crop.x,
                .crop_y = crop.y,
                .crop_width = crop.width,
                .crop_height = crop.height,
                .resized_width = first.width,
                .resized_height = first.height};
  bool grayscale = first.grayscale;
  if (plan.steps.size() == 2) {
    const GeometryStep& second = plan.steps.back();
    const bool resizes = second.width != second.crop.width || second.height != second.crop.height;
    if (resizes || !LiesWithin(second.crop, first.width, first.height)) return std::nullopt;
    out.out_x = second.crop.x;
    out.out_y = second.crop.y;
    grayscale |= second.grayscale;
  }
  static_assert(static_cast<int>(Interpolation::kLanczos) == static_cast<int>(PlanInterpolation::kLanczos));
  out.interpolation = static_cast<uint32_t>(first.resampling.interpolation);
  out.flags = (plan.flip_vertical ? kPlanFlipVertical : 0) |
              (first.resampling.mirrored ? kPlanResizeMirrored : 0) |
              (first.resampling.upside_down ? kPlanResizeUpsideDown : 0) | (grayscale ? kPlanGrayscale : 0);
  return out;
}

bool MayFitGpu(const TransformChain& transforms) {
  // Of no resize's output: a resize that happens to do nothing would hide one that does.
  constexpr std::array<ImageSize, 5> kSizes = {{{503, 379}, {373, 499}, {67, 61}, {1283, 719}, {4027, 3023}}};
  constexpr uint64_t kDraws = 32;
  GeometryPlan plan;
  for (const ImageSize& size : kSizes) {
    for (uint64_t sample = 0; sample < kDraws; ++sample) {
      if (transforms.Plan({0, 0, sample}, size, plan).ok() && PlanForGpu(plan, size)) return true;
    }
  }
  return false;
}

}  // namespace pinfeed
