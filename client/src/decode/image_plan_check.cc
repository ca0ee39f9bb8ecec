// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/image_plan_check.h"

#include <algorithm>
#include <string>

#include "common/spec/feed_spec.h"

namespace pinfeed {
namespace {

Status Wrong(const std::string& what) {
  return DataLoss("the daemon's plan of an image is wrong: " + what);
}

// Whether the `size` pixels from `first` on lie within `whole`, and are at least one.
bool Within(int32_t first, int32_t size, int32_t whole) {
  return first >= 0 && size >= 1 && size <= whole && first <= whole - size;
}

std::string Size(int64_t width, int64_t height) {
  return std::to_string(width) + " x " + std::to_string(height) + " pixels";
}

}  // namespace

Status CheckImagePlan(const ImagePlan& plan, uint32_t height, uint32_t width) {
  if (plan.kind > static_cast<uint32_t>(ImagePlanKind::kPixels))
    return Wrong("there is no kind " + std::to_string(plan.kind));
  if (plan.kind != static_cast<uint32_t>(ImagePlanKind::kJpeg)) {
    const ImagePlan empty{.kind = plan.kind};
    return plan == empty ? OkStatus() : Wrong("it describes a file that the sample does not have");
  }
  if (std::any_of(std::begin(plan.reserved), std::end(plan.reserved),
                  [](uint32_t word) { return word != 0; }) ||
      (plan.flags & ~kPlanFlags) != 0)
    return Wrong("it asks for something that this client does not know; install the daemon's version");
  if (plan.interpolation > static_cast<uint32_t>(PlanInterpolation::kLanczos))
    return Wrong("there is no interpolation " + std::to_string(plan.interpolation));
  if (plan.width < 1 || plan.height < 1 || plan.width > static_cast<int32_t>(kMaxImageSide) ||
      plan.height > static_cast<int32_t>(kMaxImageSide) || int64_t{plan.width} * plan.height > kMaxPlanPixels)
    return Wrong("an image of " + Size(plan.width, plan.height) + " is not for the GPU");
  if (!Within(plan.crop_x, plan.crop_width, plan.width) ||
      !Within(plan.crop_y, plan.crop_height, plan.height))
    return Wrong("its crop leaves the image of " + Size(plan.width, plan.height));
  if (plan.resized_width > kMaxResizeSide || plan.resized_height > kMaxResizeSide ||
      height > static_cast<uint32_t>(kMaxResizeSide) || width > static_cast<uint32_t>(kMaxResizeSide) ||
      !Within(plan.out_x, static_cast<int32_t>(width), plan.resized_width) ||
      !Within(plan.out_y, static_cast<int32_t>(height), plan.resized_height))
    return Wrong("an output of " + Size(width, height) + " does not lie within " +
                 Size(plan.resized_width, plan.resized_height));
  return OkStatus();
}

Status CheckJpegFrame(const ImagePlan& plan, const JpegFrame& frame) {
  if (frame.width != static_cast<uint32_t>(plan.width) || frame.height != static_cast<uint32_t>(plan.height))
    return DataLoss("the JPEG file has " + Size(frame.width, frame.height) + ", its plan says " +
                    Size(plan.width, plan.height));
  if (!frame.sequential)
    return DataLoss("the JPEG file is not a sequential one, which the GPU cannot decode");
  if (frame.components != 1 && frame.components != 3)
    return DataLoss("the JPEG file has " + std::to_string(frame.components) +
                    " components; the GPU decodes 1 or 3");
  return OkStatus();
}

}  // namespace pinfeed
