// SPDX-License-Identifier: Apache-2.0
// The parameters of the kernels behind the JPEG engines. Compiled for the host and the device.
#pragma once

#include <stdint.h>

namespace pinfeed {

// One axis of an image: a region of the source is resized, and the output is a part of the result. There is
// no resize if `region` equals `resized`.
struct ImageAxis {
  int32_t first;     // of the region, in the image
  int32_t region;    // its size
  int32_t resized;   // its size after the resize
  int32_t out;       // the output's origin in the resized region
  uint32_t reverse;  // kInterpolateNearest counts pixels from the end
};

// One image: the pixels of a JPEG file, and what becomes of them. Their owner has checked that the region
// lies within the image and the output within the resized region.
struct DecodedImage {
  const uint8_t* pixels;  // red, green, blue; 8-byte aligned. Null: there is no image, zeros are written
  uint32_t pitch;         // bytes of a row; a multiple of 8
  uint32_t interpolation;
  uint32_t grayscale;  // 1: the luma of the colours, before the resize
  uint32_t upside_down;
  ImageAxis x;
  ImageAxis y;
  uint8_t* out;  // height * width * channels bytes, pixel by pixel
};

// Values of DecodedImage::interpolation, as PlanInterpolation.
inline constexpr uint32_t kInterpolateNearest = 0;
inline constexpr uint32_t kInterpolateBilinear = 1;
inline constexpr uint32_t kInterpolateBicubic = 2;
inline constexpr uint32_t kInterpolateLanczos = 3;

// Makes the outputs of some images. The struct is the kernel's only parameter.
struct DecodeImages {
  const DecodedImage* images;
  uint32_t* unwritten;  // of each image
  uint64_t poison;      // what was in the pixels' place before
  uint32_t count;
  uint32_t height;  // of each output
  uint32_t width;
  uint32_t channels;  // 3, or 1: the luma
};

// All have blocks of kDecodeThreads. A block of the first makes one tile of one image: blockIdx.y is the
// image, blockIdx.x the tile.
inline constexpr unsigned kDecodeThreads = 256;
inline constexpr uint32_t kDecodeTileWidth = 32;
inline constexpr uint32_t kDecodeTileHeight = 32;
inline constexpr const char* kDecodeKernel = "DecodeImages";
// With DecodeImages, one block an image, before the engines: puts `poison` into some places of its region.
inline constexpr const char* kPoisonKernel = "PoisonPixels";
// The same, behind the engines: sets `unwritten` of each image to 1 if one of these places still has it. Runs
// before the first kernel, so that what it has seen, that sees too.
inline constexpr const char* kCheckKernel = "CheckPixels";

}  // namespace pinfeed
