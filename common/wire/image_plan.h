// SPDX-License-Identifier: Apache-2.0
// How the client makes one image of a batch when it decodes on the GPU. The daemon writes one plan per sample
// into the slot. The client checks every field before it uses it.
#pragma once

#include <bit>
#include <cstdint>

namespace pinfeed {

// The most pixels of a JPEG that goes to a client's decoder, whose memory is fixed. The daemon decodes larger
// ones, and all that are not sequential Huffman-coded YCbCr or grey images of 8 bits with chroma sampled
// 4:4:4, 4:2:2 or 4:2:0 in a single scan.
inline constexpr int64_t kMaxPlanPixels = int64_t{1} << 24;

// What the sample's bytes are, in ImagePlan::kind.
enum class ImagePlanKind : uint32_t {
  kZero = 0,    // a bad sample: there are no bytes, the pixels are zeros
  kJpeg = 1,    // a JPEG file, to be decoded as the rest of the plan says
  kPixels = 2,  // pixels of the output's size that the daemon decoded: uint8, height x width x channels
};

// The filters in ImagePlan::interpolation, in the order of the daemon's Interpolation. All but kNearest are
// antialiased.
enum class PlanInterpolation : uint32_t { kNearest = 0, kBilinear = 1, kBicubic = 2, kLanczos = 3 };

// ImagePlan::flags
inline constexpr uint32_t kPlanFlipVertical = 1U << 0;      // the output is turned upside down at the end
inline constexpr uint32_t kPlanResizeMirrored = 1U << 1;    // kNearest counts columns from the right
inline constexpr uint32_t kPlanResizeUpsideDown = 1U << 2;  // kNearest counts rows from the bottom
inline constexpr uint32_t kPlanGrayscale = 1U << 3;         // all channels get the luma, before the resize
inline constexpr uint32_t kPlanFlags = 0xF;                 // all of the above; other bits are 0

// The maximum side before and after a resize. A decoded image resized with its aspect ratio stays below it:
// its longer side becomes at most the root of its pixels times its longest possible side.
inline constexpr int32_t kMaxResizeSide = 1 << 22;

// The steps, in this order: decode, crop, grayscale, resize, take the output out of the result, flip. The
// output's size is that of the feed's image. A mirrored output is not in the plan: the kernel that converts
// the pixels mirrors by the sample's mark. With kZero and kPixels, all fields after `kind` are 0.
struct ImagePlan {
  uint32_t kind = 0;  // ImagePlanKind
  int32_t width = 0;  // of the stored JPEG
  int32_t height = 0;
  int32_t crop_x = 0;  // the region of the stored image that is resized; it lies within the image
  int32_t crop_y = 0;
  int32_t crop_width = 0;
  int32_t crop_height = 0;
  int32_t resized_width = 0;  // its size after resizing; there is no resize if both equal the region's
  int32_t resized_height = 0;
  int32_t out_x = 0;  // the origin of the output in the resized region; the output lies within it
  int32_t out_y = 0;
  uint32_t interpolation = 0;  // PlanInterpolation; unused without a resize
  uint32_t flags = 0;          // kPlan...
  uint32_t reserved[3] = {};   // 0
  bool operator==(const ImagePlan&) const = default;
};
static_assert(sizeof(ImagePlan) == 64);
static_assert(std::endian::native == std::endian::little, "plans are little-endian in the slot");

}  // namespace pinfeed
