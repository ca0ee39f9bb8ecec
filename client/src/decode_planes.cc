// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode_planes.h"

namespace pinfeed {
namespace {

// A whole MCU has at most 32 pixels a side.
constexpr uint32_t kBlocks = 32;
constexpr uint32_t kPlaneAlignment = 256;

constexpr uint32_t RoundUp(uint32_t value, uint32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

PlaneLayout PlanesOf(const JpegFrame& frame, EngineOutput output) {
  PlaneLayout layout;
  layout.interleaved = output == EngineOutput::kRgb;
  layout.planes = layout.interleaved ? 1 : frame.components;
  for (uint32_t p = 0; p < layout.planes; ++p) {
    const uint32_t width = RoundUp(frame.width, kBlocks) >> (p == 0 ? 0 : frame.h_shift);
    const uint32_t height = RoundUp(frame.height, kBlocks) >> (p == 0 ? 0 : frame.v_shift);
    layout.pitch[p] = RoundUp(width, kBlocks) * (layout.interleaved ? 3 : 1);
    layout.start[p] = layout.bytes;
    const uint64_t bytes = uint64_t{layout.pitch[p]} * height;
    layout.bytes += (bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
  }
  return layout;
}

void Describe(const ImagePlan& plan, const JpegFrame& frame, const PlaneLayout& planes, DecodedImage& image) {
  image.planes = planes.planes;
  image.interleaved = planes.interleaved ? 1 : 0;
  image.pitch[0] = planes.pitch[0];
  image.pitch[1] = planes.pitch[1];
  image.width = plan.width;
  image.height = plan.height;
  image.chroma_width = (plan.width + static_cast<int32_t>(frame.h_shift)) >> frame.h_shift;
  image.chroma_height = (plan.height + static_cast<int32_t>(frame.v_shift)) >> frame.v_shift;
  image.h_shift = frame.h_shift;
  image.v_shift = frame.v_shift;
  image.interpolation = plan.interpolation;
  image.grayscale = (plan.flags & kPlanGrayscale) != 0 ? 1 : 0;
  image.upside_down = (plan.flags & kPlanFlipVertical) != 0 ? 1 : 0;
  image.x = {plan.crop_x, plan.crop_width, plan.resized_width, plan.out_x,
             (plan.flags & kPlanResizeMirrored) != 0 ? 1U : 0U};
  image.y = {plan.crop_y, plan.crop_height, plan.resized_height, plan.out_y,
             (plan.flags & kPlanResizeUpsideDown) != 0 ? 1U : 0U};
}

}  // namespace pinfeed
