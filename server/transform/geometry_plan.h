// SPDX-License-Identifier: Apache-2.0
// The geometry of one image. In: the image's size and the transforms' requests, one after the other. Out: a
// short list of crops and resizes with the same result, and whether to flip at the end.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/border.h"
#include "server/image/image.h"
#include "server/image/resize.h"

namespace pinfeed {

// What an image is extended with beyond its border.
struct Border {
  BorderMode mode = BorderMode::kConstant;
  std::array<uint8_t, 3> fill{};  // RGB, for kConstant
  bool operator==(const Border&) const = default;
};

// One step of a plan, in this order: crop, convert to grayscale, resize. A crop that extends beyond the image
// pads it.
struct GeometryStep {
  Box crop;
  int32_t width = 0;  // after the step; there is no resize if this is the size of the crop
  int32_t height = 0;
  Border border = {};      // how to pad; unused if the crop lies within the image
  bool grayscale = false;  // all three channels get the luma
  // How to resize. The plan moves flips to its end. If a flip precedes the resize in the transform list, the
  // resize is marked as mirrored or upside down, so that its result is the same.
  Resampling resampling = {};
  bool operator==(const GeometryStep&) const = default;
};

// Purpose: the geometric operations on one image. Consecutive crops are merged where the result is the same.
// Flips are moved to the end, where they cost nothing. Invariants: 1. `steps` is not empty; 2. the crop of
// the first step is in pixels of the source image, every other one in pixels of the previous step's result.
struct GeometryPlan {
  std::vector<GeometryStep> steps;
  bool flip = false;           // left to right, after all steps
  bool flip_vertical = false;  // top to bottom
};

// Purpose: builds a plan from the transforms' calls. The constructor clears the plan. Borrows the plan.
// Threads: one.
class GeometryPlanner {
 public:
  GeometryPlanner(GeometryPlan& plan, ImageSize size);

  // The size of the image after the operations added so far.
  ImageSize size() const { return {plan_.steps.back().width, plan_.steps.back().height}; }

  // Boxes and sizes refer to the image after the operations added so far, flips included. A box may extend
  // beyond the image; `border` says how to pad it then.
  void Crop(Box box, Border border = {});
  void Resize(ImageSize size, Interpolation interpolation);
  void Grayscale();
  void FlipHorizontally() { plan_.flip = !plan_.flip; }
  void FlipVertically() { plan_.flip_vertical = !plan_.flip_vertical; }

 private:
  // Whether a crop that needs padding by `border` can be merged into the last step.
  bool CanExtendLastStep(const Border& border) const;

  GeometryPlan& plan_;
  ImageSize input_;  // the image size before the last step
};

// Returns the part of a source image of `size` that the plan needs. It has at least one pixel.
Box SourceRegion(const GeometryPlan& plan, ImageSize size);

// Purpose: working memory of RunGeometry, reused for each image. Threads: one at a time.
struct GeometryScratch {
  ResizeScratch resize;
  ImageBuffer images[2];         // results of steps, used alternately
  std::vector<int32_t> columns;  // while padding: the source column of each output column (PixelAt)

  // Frees buffers larger than `bytes`.
  void Trim(size_t bytes) {
    resize.Trim(bytes);
    for (ImageBuffer& image : images) image.Trim(bytes);
    if (columns.capacity() * sizeof(int32_t) > bytes) columns = {};
  }
};

// Runs the plan except its flips, which the caller applies when it writes the pixels out. `source` is the
// SourceRegion of an image of `size`. The result may point into `source` or `scratch`, so it is valid until
// the memory of either is reused.
Result<ImageView> RunGeometry(const GeometryPlan& plan, ImageSize size, const ImageView& source,
                              GeometryScratch& scratch);

}  // namespace pinfeed
