// SPDX-License-Identifier: Apache-2.0
// Where the planes of a JPEG file lie in the decoder's memory, and what the kernel does with them. Uses no
// CUDA types.
#pragma once

#include <cstdint>

#include "client/kernels/decode_images.h"
#include "client/src/image_plan_check.h"

namespace pinfeed {

// What the engines write.
enum class EngineOutput : uint8_t {
  kPlanes,  // luma and chroma as they are in the file
  kRgb,     // pixels, whose chroma nvJPEG has interpolated
};

// The planes of one image; with kRgb, one of three bytes a pixel. Each has room for whole blocks, which an
// engine may write, and rows that are aligned.
struct PlaneLayout {
  uint64_t offset = 0;     // of the first plane in the decoder's memory
  uint64_t bytes = 0;      // of all planes; a multiple of 256
  uint64_t start[3] = {};  // of each plane, from `offset` on
  uint32_t pitch[3] = {};
  uint32_t planes = 0;
  bool interleaved = false;
};

// Precondition: CheckJpegFrame returned OK.
PlaneLayout PlanesOf(const JpegFrame& frame, EngineOutput output);

// Describes the image to the kernel, except `out` and the planes' addresses. Precondition: CheckImagePlan and
// CheckJpegFrame returned OK.
void Describe(const ImagePlan& plan, const JpegFrame& frame, const PlaneLayout& planes, DecodedImage& image);

}  // namespace pinfeed
