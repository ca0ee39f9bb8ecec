// SPDX-License-Identifier: Apache-2.0
#include "tests/support/planned_images.h"

namespace pinfeed {

WirePlan PlanOnWire(const GeometryPlan& plan, ImageSize size) {
  const GeometryStep& first = plan.steps.front();
  const GeometryStep& last = plan.steps.back();
  const Box& crop = first.crop;
  const Box out = plan.steps.size() == 1 ? Box{0, 0, first.width, first.height} : last.crop;
  WirePlan wire;
  const auto within = [](const Box& box, int32_t width, int32_t height) {
    return box.x >= 0 && box.y >= 0 && box.x + box.width <= width && box.y + box.height <= height;
  };
  wire.fits = plan.steps.size() <= 2 && within(crop, size.width, size.height) &&
              within(out, first.width, first.height) &&
              (plan.steps.size() == 1 ||
               (!last.grayscale && last.width == last.crop.width && last.height == last.crop.height));
  wire.plan = {.kind = static_cast<uint32_t>(ImagePlanKind::kJpeg),
               .width = size.width,
               .height = size.height,
               .crop_x = crop.x,
               .crop_y = crop.y,
               .crop_width = crop.width,
               .crop_height = crop.height,
               .resized_width = first.width,
               .resized_height = first.height,
               .out_x = out.x,
               .out_y = out.y,
               .interpolation = static_cast<uint32_t>(first.resampling.interpolation),
               .flags = (plan.flip_vertical ? kPlanFlipVertical : 0) |
                        (first.resampling.mirrored ? kPlanResizeMirrored : 0) |
                        (first.resampling.upside_down ? kPlanResizeUpsideDown : 0) |
                        (first.grayscale ? kPlanGrayscale : 0)};
  return wire;
}

Result<GeometryPlan> WorkerPath::Plan(std::span<const std::byte> file, const TransformChain& chain,
                                      uint64_t sample) {
  ASSIGN_OR_RETURN(const ImageDecoder::Size size, decoder_.Open(file, false));
  GeometryPlan plan;
  RETURN_IF_ERROR(chain.Plan({.seed = 1, .epoch = 0, .sample = sample}, {size.width, size.height}, plan));
  return plan;
}

Result<std::vector<uint8_t>> WorkerPath::Make(std::span<const std::byte> file, const GeometryPlan& plan) {
  ASSIGN_OR_RETURN(const ImageDecoder::Size size, decoder_.Open(file, false));
  const ImageSize whole{size.width, size.height};
  ASSIGN_OR_RETURN(const ImageView source, decoder_.Decode(SourceRegion(plan, whole)));
  ASSIGN_OR_RETURN(ImageView made, RunGeometry(plan, whole, source, scratch_));
  if (plan.flip_vertical) made = made.UpsideDown();
  std::vector<uint8_t> pixels;
  for (int32_t y = 0; y < made.height; ++y)
    pixels.insert(pixels.end(), made.Row(y), made.Row(y) + 3 * static_cast<size_t>(made.width));
  return pixels;
}

}  // namespace pinfeed
