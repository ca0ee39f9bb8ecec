// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/engine_pixels.h"

#include <algorithm>

#include "common/base/round_up.h"

namespace pinfeed {
namespace {

// A whole MCU has at most 32 pixels a side.
constexpr uint64_t kBlocks = 32;
constexpr uint64_t kAlignment = 256;
constexpr int32_t kMargin = 2;  // a sample of subsampled chroma
constexpr int32_t kBlock = 16;  // a whole MCU; its rows are 48 bytes

}  // namespace

EnginePixels PixelsOf(const JpegFrame& frame) {
  EnginePixels pixels;
  pixels.pitch = static_cast<uint32_t>(3 * RoundUp(frame.width, kBlocks));
  const uint64_t bytes = pixels.pitch * RoundUp(frame.height, kBlocks);
  pixels.bytes = RoundUp(bytes, kAlignment);
  return pixels;
}

ImageRegion EngineRegion(const ImagePlan& plan) {
  const bool reads_edge =
      plan.crop_x + plan.crop_width == plan.width || plan.crop_y + plan.crop_height == plan.height;
  if (reads_edge) return {0, 0, plan.width, plan.height};
  const int32_t left = std::max(0, plan.crop_x - kMargin) / kBlock * kBlock;
  const int32_t top = std::max(0, plan.crop_y - kMargin) / kBlock * kBlock;
  const int32_t right = std::min(plan.width, plan.crop_x + plan.crop_width + kMargin);
  const int32_t bottom = std::min(plan.height, plan.crop_y + plan.crop_height + kMargin);
  return {left, top, right - left, bottom - top};
}

DecodedImage Describe(const ImagePlan& plan, const EnginePixels& pixels) {
  DecodedImage image{};
  image.pitch = pixels.pitch;
  image.interpolation = plan.interpolation;
  image.grayscale = (plan.flags & kPlanGrayscale) != 0 ? 1 : 0;
  image.upside_down = (plan.flags & kPlanFlipVertical) != 0 ? 1 : 0;
  image.x = {plan.crop_x, plan.crop_width, plan.resized_width, plan.out_x,
             (plan.flags & kPlanResizeMirrored) != 0 ? 1U : 0U};
  image.y = {plan.crop_y, plan.crop_height, plan.resized_height, plan.out_y,
             (plan.flags & kPlanResizeUpsideDown) != 0 ? 1U : 0U};
  return image;
}

}  // namespace pinfeed
