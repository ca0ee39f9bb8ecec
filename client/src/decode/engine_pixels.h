// SPDX-License-Identifier: Apache-2.0
// Where the engines write a file's pixels, and what the kernel does with them. Uses no CUDA types.
#pragma once

#include <cstdint>

#include "client/kernels/decode_images.h"
#include "client/src/decode/image_plan_check.h"

namespace pinfeed {

// The pixels of one file, of three bytes each, in the decoder's memory. There is room for whole blocks, which
// an engine may write, and rows are aligned.
struct EnginePixels {
  uint64_t offset = 0;
  uint64_t bytes = 0;  // a multiple of 256
  uint32_t pitch = 0;
};

// At offset 0. Precondition: CheckJpegFrame returned OK.
EnginePixels PixelsOf(const JpegFrame& frame);

// A part of an image, in pixels.
struct ImageRegion {
  int32_t x = 0;
  int32_t y = 0;
  int32_t width = 0;
  int32_t height = 0;
};

// What the engines are to write of a file: the region that the plan reads, and some pixels around it, so that
// no interpolated chroma depends on where the region ends. It begins at multiples of 16 pixels, so that its
// rows are aligned, and whole blocks of it lie in the image's place. A plan that reads the image's last
// column or row needs all of it: there, nvJPEG 13.0 gives a part other chroma than the whole image if that
// side is even (tests/gpu/decode_images.cc). Precondition: CheckImagePlan returned OK.
ImageRegion EngineRegion(const ImagePlan& plan);

// Describes the image to the kernel, except for the addresses. Precondition: CheckImagePlan and
// CheckJpegFrame returned OK.
DecodedImage Describe(const ImagePlan& plan, const EnginePixels& pixels);

}  // namespace pinfeed
