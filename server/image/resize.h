// SPDX-License-Identifier: Apache-2.0
// Resampling. In: an image. Out: a window of that image resized, with the bytes that Pillow's filters give.
#pragma once

#include <cstdint>
#include <vector>

#include "server/image/image.h"

namespace pinfeed {

// The longest side that is resized from, or to. A decoded image (kMaxImageSide) that is resized with its
// aspect ratio kept stays below it: its longer side becomes at most sqrt(kMaxImagePixels * kMaxImageSide).
inline constexpr int32_t kMaxResizeSide = 1 << 22;

// Pillow's filters by their names. All but kNearest are antialiased.
enum class Interpolation { kNearest, kBilinear, kBicubic, kLanczos };

struct Resampling {
  Interpolation interpolation = Interpolation::kBilinear;
  // That the image is mirrored, which kNearest, the only one that is not symmetric, must know: columns or
  // rows are counted from the end.
  bool mirrored = false;
  bool upside_down = false;
  bool operator==(const Resampling&) const = default;
};

// Which input pixels make an output pixel along one side, and with which weights.
struct ResizeAxis {
  int32_t taps = 0;  // even; the same for every output, weights behind `count` are 0
  std::vector<int32_t> first;
  std::vector<int32_t> count;
  std::vector<int32_t> weight;  // weight[output * taps + tap], 22 bits
  std::vector<int32_t> high;    // pairs of 16-bit parts: high[(output * taps + tap) / 2]
  std::vector<int32_t> low;
};

// Purpose: a resize's working memory, reused from call to call. Threads: one at a time. Invariant: with sides
// of `in` and `out` pixels an axis has at most 6 * in + 10 * out weights, of 8 bytes with their halves, and
// `weights` and `rows` take 16 bytes for each of at most 6 * in / out + 10 taps. So all but `lines` takes
// less than 25 MB when no side is over kMaxImageSide, and else less than 1 GB, since kMaxImagePixels leaves
// room for one side near kMaxResizeSide only, before the resize and behind it.
struct ResizeScratch {
  ResizeAxis x;
  ResizeAxis y;
  std::vector<double> weights;
  std::vector<const uint8_t*> rows;
  ImageBuffer lines;

  // Gives back the lines, and all the rest, if they are more than `bytes`.
  void Trim(size_t bytes);
};

// Whether the vector code is used where the processor has it. Both give the same bytes; the tests compare
// them.
enum class ResizeCode { kBest, kPortable };

// Resizes `source` to `width` x `height` and writes the pixels of `window` of the result to `out`, rows
// packed; only these are computed. Preconditions: no size is 0; the window is not empty and lies within width
// x height; `out` holds kRowSlack bytes more than the window. kResourceExhausted when a side is over
// kMaxResizeSide, or the rows between the two passes are over kMaxImagePixels.
Status ResizeImage(const ImageView& source, int32_t width, int32_t height, const Resampling& resampling,
                   const Box& window, ResizeScratch& scratch, uint8_t* out,
                   ResizeCode code = ResizeCode::kBest);

}  // namespace pinfeed
