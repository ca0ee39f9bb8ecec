// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a daemon's plan of an image and the size of its output. What the client takes,
// the kernel makes without leaving the image's memory, of those pixels alone that the engines write.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "client/src/decode/engine_pixels.h"
#include "client/src/decode/image_plan_check.h"
#include "common/base/status.h"
#include "tests/support/decode_on_host.h"

namespace pinfeed {
namespace {

struct Input {
  ImagePlan plan;
  uint16_t height;
  uint16_t width;
};

// More takes too long for one input.
constexpr int64_t kMostPixels = int64_t{1} << 18;
constexpr int64_t kMostReads = int64_t{1} << 22;

// How many pixels of an axis a kernel reads, for all outputs of it together.
int64_t ReadsOf(int64_t region, int64_t resized, int64_t outputs) {
  const int64_t reach = 6 * std::max<int64_t>(1, region / resized + 1);
  return outputs * std::min(region, reach);
}

std::vector<uint8_t> Make(const Input& input, const EnginePixels& layout, uint8_t elsewhere) {
  const ImagePlan& plan = input.plan;
  std::vector<uint8_t> pixels(layout.bytes, elsewhere);
  const ImageRegion region = EngineRegion(plan);
  PF_CHECK(region.x >= 0 && region.y >= 0 && region.x + region.width <= plan.width &&
               region.y + region.height <= plan.height,
           "the engines write a part of the image");
  for (int32_t y = region.y; y < region.y + region.height; ++y) {
    for (int32_t i = 3 * region.x; i < 3 * (region.x + region.width); ++i)
      pixels[uint64_t{layout.pitch} * static_cast<uint32_t>(y) + static_cast<uint32_t>(i)] =
          static_cast<uint8_t>(31 * y + 7 * i);
  }
  DecodeImages work{};
  work.height = input.height;
  work.width = input.width;
  work.channels = 3;
  std::vector<uint8_t> out(size_t{3} * work.height * work.width);
  DecodedImage image = Describe(plan, layout);
  image.pixels = pixels.data();
  image.out = out.data();
  MakeOnHost(work, image);
  return out;
}

void Run(const Input& input) {
  const ImagePlan& plan = input.plan;
  if (input.height == 0 || input.width == 0) return;
  if (!CheckImagePlan(plan, input.height, input.width).ok()) return;
  if (plan.kind != static_cast<uint32_t>(ImagePlanKind::kJpeg)) return;
  if (int64_t{plan.width} * plan.height > kMostPixels) return;
  if (ReadsOf(plan.crop_width, plan.resized_width, input.width) *
          ReadsOf(plan.crop_height, plan.resized_height, input.height) >
      kMostReads)
    return;
  const JpegFrame frame{.width = static_cast<uint32_t>(plan.width),
                        .height = static_cast<uint32_t>(plan.height),
                        .components = 3,
                        .sequential = true};
  PF_CHECK(CheckJpegFrame(plan, frame).ok(), "a file of the plan's size is the plan's");
  const EnginePixels layout = PixelsOf(frame);
  PF_CHECK(Make(input, layout, 0) == Make(input, layout, 0xFF), "the outputs are of what the engines write");
}

}  // namespace
}  // namespace pinfeed

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pinfeed::Input input{};
  std::memcpy(&input, data, std::min(size, sizeof input));
  pinfeed::Run(input);
  return 0;
}
