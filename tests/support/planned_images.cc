// SPDX-License-Identifier: Apache-2.0
#include "tests/support/planned_images.h"

#include <algorithm>
#include <string>

namespace pinfeed {

Result<GeometryPlan> WorkerPath::Plan(std::span<const std::byte> file, const TransformChain& chain,
                                      uint64_t sample) {
  ASSIGN_OR_RETURN(const ImageSize size, decoder_.Open(file, false));
  GeometryPlan plan;
  RETURN_IF_ERROR(chain.Plan({.seed = 1, .epoch = 0, .sample = sample}, size, plan));
  return plan;
}

Result<std::vector<uint8_t>> WorkerPath::Make(std::span<const std::byte> file, const GeometryPlan& plan) {
  ASSIGN_OR_RETURN(const ImageSize whole, decoder_.Open(file, false));
  ASSIGN_OR_RETURN(const ImageView source, decoder_.Decode(SourceRegion(plan, whole)));
  ASSIGN_OR_RETURN(ImageView made, RunGeometry(plan, whole, source, scratch_));
  if (plan.flip_vertical) made = made.UpsideDown();
  std::vector<uint8_t> pixels;
  for (int32_t y = 0; y < made.height; ++y)
    pixels.insert(pixels.end(), made.Row(y), made.Row(y) + 3 * static_cast<size_t>(made.width));
  return pixels;
}

Status MakePlanned(std::span<const std::byte> file, const ImagePlan& plan, const PlannedSize& size,
                   std::span<uint8_t> pixels) {
  ImageDecoder header;
  ASSIGN_OR_RETURN(const ImageSize opened, header.Open(file, false));
  if (opened.width != plan.width || opened.height != plan.height)
    return DataLoss("the image is " + std::to_string(opened.width) + " x " + std::to_string(opened.height));
  const auto height = static_cast<int32_t>(size.height);
  const auto width = static_cast<int32_t>(size.width);
  GeometryPlan geometry;
  GeometryStep step{.crop = {plan.crop_x, plan.crop_y, plan.crop_width, plan.crop_height},
                    .width = plan.resized_width,
                    .height = plan.resized_height};
  step.grayscale = (plan.flags & kPlanGrayscale) != 0;
  step.resampling = {static_cast<Interpolation>(plan.interpolation), (plan.flags & kPlanResizeMirrored) != 0,
                     (plan.flags & kPlanResizeUpsideDown) != 0};
  geometry.steps = {step,
                    {.crop = {plan.out_x, plan.out_y, width, height}, .width = width, .height = height}};
  geometry.flip_vertical = (plan.flags & kPlanFlipVertical) != 0;
  thread_local WorkerPath path;
  ASSIGN_OR_RETURN(const std::vector<uint8_t> made, path.Make(file, geometry));
  for (size_t i = 0; i < size.height * size.width; ++i)
    std::copy_n(&made[3 * i], size.channels, &pixels[size.channels * i]);
  return OkStatus();
}

}  // namespace pinfeed
