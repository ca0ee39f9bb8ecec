// SPDX-License-Identifier: Apache-2.0
// Resamples images. In: an image. Out: a window of the resized image, with the bytes that Pillow's filters
// produce.
#pragma once

#include <cstdint>
#include <vector>

#include "common/wire/image_plan.h"
#include "server/image/image.h"

namespace pinfeed {

// Pillow's filters, by Pillow's names. All but kNearest are antialiased.
enum class Interpolation { kNearest, kBilinear, kBicubic, kLanczos };

struct Resampling {
  Interpolation interpolation = Interpolation::kBilinear;
  // Whether the image is mirrored. kNearest is the only asymmetric filter and needs this: it counts columns
  // or rows from the end.
  bool mirrored = false;
  bool upside_down = false;
  bool operator==(const Resampling&) const = default;
};

// Which input pixels contribute to each output pixel along one axis, and with which weights.
struct ResizeAxis {
  int32_t taps = 0;  // even; the same for every output; weights after `count` are 0
  std::vector<int32_t> first;
  std::vector<int32_t> count;
  std::vector<int32_t> weight;  // weight[output * taps + tap], 22 bits
  std::vector<int32_t> high;    // pairs of 16-bit parts: high[(output * taps + tap) / 2]
  std::vector<int32_t> low;
};

// Purpose: the working memory of a resize, reused between calls. Threads: one at a time. Invariant: for sides
// of `in` and `out` pixels, an axis has at most 6 * in + 10 * out weights of 8 bytes, including their halves.
// `weights` and `rows` take 16 bytes for each of at most 6 * in / out + 10 taps. All but `lines` therefore
// takes less than 25 MB if no side exceeds kMaxImageSide. Otherwise it takes less than 1 GB, since
// kMaxImagePixels allows only one side near kMaxResizeSide, both before and after the resize.
struct ResizeScratch {
  ResizeAxis x;
  ResizeAxis y;
  std::vector<double> weights;
  std::vector<const uint8_t*> rows;
  ImageBuffer lines;

  // Frees `lines` if they exceed `bytes`, and everything else if it exceeds `bytes`.
  void Trim(size_t bytes);
};

// Whether to use vector code where the processor supports it. Both produce the same bytes, and tests compare
// them.
enum class ResizeCode { kBest, kPortable };

// Resizes `source` to `width` x `height` and writes the pixels of `window` of the result to `out`, with
// packed rows. Computes only those. Preconditions: no size is 0; the window is not empty and lies within
// width x height; `out` has room for kRowSlack bytes more than the window. kResourceExhausted when a side
// exceeds kMaxResizeSide, or the rows between the passes exceed kMaxImagePixels.
Status ResizeImage(const ImageView& source, int32_t width, int32_t height, const Resampling& resampling,
                   const Box& window, ResizeScratch& scratch, uint8_t* out,
                   ResizeCode code = ResizeCode::kBest);

}  // namespace pinfeed
