// SPDX-License-Identifier: Apache-2.0
// Geometry of one sample. In: the size of its image, and what the transforms want. Out: which pixels to cut,
// how to resize them, whether to mirror.
#pragma once

#include <cstdint>
#include <vector>

#include "server/image/image.h"
#include "server/image/resize.h"
#include "server/transform/border.h"

namespace pinfeed {

// One step of an image's way: a crop, which may reach over the border, then the loss of its colours, then a
// resize unless the size stays.
struct GeometryStep {
  Box crop;
  int32_t width = 0;
  int32_t height = 0;
  Border border = {};  // where the crop reaches over it
  bool grayscale = false;
  // Of the resize. A flip that comes later here, and before this resize among the transforms, has it
  // mirrored.
  Resampling resampling = {};
  bool operator==(const GeometryStep&) const = default;
};

// Purpose: what is to be done to one image. Consecutive crops are one crop; mirroring is moved behind
// everything, where it costs nothing. Invariant: steps is not empty; each step's crop but the first is given
// in the pixels of the step before.
struct GeometryPlan {
  std::vector<GeometryStep> steps;
  bool flip = false;           // left to right
  bool flip_vertical = false;  // top to bottom
};

// Purpose: appends what transforms want to a plan, which it begins anew. Borrows the plan. Threads: one.
class GeometryPlanner {
 public:
  GeometryPlanner(GeometryPlan& plan, ImageSize size);

  // Of the image as the transforms so far leave it.
  ImageSize size() const { return {plan_.steps.back().width, plan_.steps.back().height}; }

  // Boxes and sizes are of the image as the transforms see it, flipped if they flipped it.
  void Crop(Box box, Border border = {});
  void Resize(ImageSize size, Interpolation interpolation);
  void Grayscale();
  void FlipHorizontally() { plan_.flip = !plan_.flip; }
  void FlipVertically() { plan_.flip_vertical = !plan_.flip_vertical; }

 private:
  bool CanExtendLastStep(const Border& border) const;

  GeometryPlan& plan_;
  ImageSize input_;  // of the last step
};

// The part of the source image that the plan needs; at least one pixel.
Box SourceRegion(const GeometryPlan& plan, ImageSize size);

// Purpose: working memory of RunGeometry. Threads: one at a time.
struct GeometryScratch {
  ResizeScratch resize;
  ImageBuffer images[2];         // of steps, by turns
  std::vector<int32_t> columns;  // of a padded image: the source's column, as PixelAt has it

  // Gives back buffers larger than `bytes`.
  void Trim(size_t bytes) {
    resize.Trim(bytes);
    for (ImageBuffer& image : images) image.Trim(bytes);
    if (columns.capacity() * sizeof(int32_t) > bytes) columns = {};
  }
};

// Runs all of the plan but the flips. `source` is the SourceRegion of an image of `size`. The result is valid
// until the source's memory or the scratch is used again; it is the source itself when the plan only cuts.
Result<ImageView> RunGeometry(const GeometryPlan& plan, ImageSize size, const ImageView& source,
                              GeometryScratch& scratch);

}  // namespace pinfeed
