// SPDX-License-Identifier: Apache-2.0
// Checks the daemon's plan of an image before the GPU follows it. Uses no CUDA types.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/wire/image_plan.h"

namespace pinfeed {

// A JPEG file's header, as the decoder that writes its pixels read it.
struct JpegFrame {
  uint32_t width = 0;
  uint32_t height = 0;
  uint32_t components = 0;
  bool sequential = false;  // one scan after the other from top to bottom; not progressive, not lossless
};

// Checks a plan of any kind for an output of `height` x `width`. After OK, no step of it leaves the memory of
// the step before, and no sum of its fields overflows. kDataLoss names the field.
Status CheckImagePlan(const ImagePlan& plan, uint32_t height, uint32_t width);

// Checks that a file is the one that the plan describes, and of a kind that is decoded here. Precondition:
// CheckImagePlan returned OK.
Status CheckJpegFrame(const ImagePlan& plan, const JpegFrame& frame);

}  // namespace pinfeed
