// SPDX-License-Identifier: Apache-2.0
#include "tests/support/planned_image.h"

#include "server/image/decode.h"
#include "server/transform/geometry_plan.h"

namespace pinfeed {

Status MakePlanned(std::span<const std::byte> file, const ImagePlan& plan, const PlannedSize& size,
                   std::span<uint8_t> pixels) {
  thread_local ImageDecoder decoder;
  thread_local GeometryScratch scratch;
  ASSIGN_OR_RETURN(const ImageDecoder::Size opened, decoder.Open(file, false));
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
  const ImageSize source_size{plan.width, plan.height};
  ASSIGN_OR_RETURN(const ImageView source, decoder.Decode(SourceRegion(geometry, source_size)));
  ASSIGN_OR_RETURN(ImageView made, RunGeometry(geometry, source_size, source, scratch));
  if ((plan.flags & kPlanFlipVertical) != 0) made = made.UpsideDown();
  uint8_t* out = pixels.data();
  for (int32_t y = 0; y < height; ++y) {
    for (int32_t x = 0; x < width; ++x) {
      for (size_t c = 0; c < size.channels; ++c) *out++ = made.Row(y)[3 * x + static_cast<int32_t>(c)];
    }
  }
  return OkStatus();
}

}  // namespace pinfeed
