// SPDX-License-Identifier: Apache-2.0
#include "tests/support/planned_images.h"

namespace pinfeed {

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
