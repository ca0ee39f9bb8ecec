// SPDX-License-Identifier: Apache-2.0
// Resampling. In: an image. Out: a window of that image resized, with the bytes Pillow's BILINEAR
// (antialiased) gives.
#pragma once

#include <cstdint>
#include <vector>

#include "server/pipeline/image.h"

namespace pinfeed {

// Which input pixels make an output pixel along one side, and with which weights.
struct ResizeAxis {
  int32_t taps = 0;  // even; the same for every output, weights behind `count` are 0
  std::vector<int32_t> first;
  std::vector<int32_t> count;
  std::vector<int32_t> weight;  // weight[output * taps + tap], 22 bits
  std::vector<int32_t> high;    // pairs of 16-bit parts: high[(output * taps + tap) / 2]
  std::vector<int32_t> low;
};

// Purpose: a resize's working memory, reused from call to call. Threads: one at a time.
struct ResizeScratch {
  ResizeAxis x;
  ResizeAxis y;
  std::vector<double> weights;
  std::vector<const uint8_t*> rows;
  ImageBuffer lines;
};

// Whether the vector code is used where the processor has it. Both give the same bytes; the tests compare
// them.
enum class ResizeCode { kBest, kPortable };

// Resizes `source` to `width` x `height` and writes the pixels of `window` of the result to `out`, rows
// packed; only these are computed. Preconditions: no size is 0; the window is not empty and lies within width
// x height; `out` holds kRowSlack bytes more than the window. kResourceExhausted when the rows between the
// two passes are over kMaxImagePixels.
Status ResizeImage(const ImageView& source, int32_t width, int32_t height, const Box& window,
                   ResizeScratch& scratch, uint8_t* out, ResizeCode code = ResizeCode::kBest);

}  // namespace pinfeed
