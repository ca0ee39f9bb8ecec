// SPDX-License-Identifier: Apache-2.0
// Geometry of one sample. In: the size of its image and its random numbers. Out: which pixels to cut, how to
// resize them, whether to mirror.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/spec/feed_spec.h"
#include "server/image/image.h"
#include "server/image/resize.h"

namespace pinfeed {

// What an image is after all transforms.
struct ImageOutcome {
  int32_t width = 0;  // 0: not the same for every sample
  int32_t height = 0;
  DType dtype = DType::kUint8;
};
struct ImageSize {
  int32_t width = 0;
  int32_t height = 0;
};

// Checks the transforms against images of `channels` channels, whose size is the same for all samples if
// `size` has a value. Appends one line a fault to `faults` ("transforms[1] normalize: ..."). The outcome
// counts only if there was none. Precondition: CheckFeedSpec found no fault.
ImageOutcome CheckTransforms(std::span<const Transform> transforms, std::optional<ImageSize> size,
                             size_t channels, std::vector<std::string>& faults);

// The first transform that moves pixels: all but Normalize, ToDtype and a flip that never happens.
std::optional<size_t> FirstGeometric(std::span<const Transform> transforms);

// One step of an image's way: a crop (zeros where it reaches over the border), then a resize unless the size
// stays.
struct GeometryStep {
  Box crop;
  int32_t width = 0;
  int32_t height = 0;
  bool mirrored = false;  // a flip that comes later here comes before this resize among the transforms
  bool operator==(const GeometryStep&) const = default;
};

// Purpose: what is to be done to one image. Consecutive crops are one crop; mirroring is moved behind
// everything, where it costs nothing. Invariant: steps is not empty; each step's crop but the first is given
// in the pixels of the step before.
struct GeometryPlan {
  std::vector<GeometryStep> steps;
  bool flip = false;
};

struct RandomKey {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  uint64_t sample = 0;
};

// Plans the geometry transforms of one image of `size`; the pointwise ones are passed over. The index of a
// transform is part of its random key. kResourceExhausted when a step is over kMaxImagePixels. Precondition:
// CheckTransforms found no fault.
Status PlanGeometry(std::span<const Transform> transforms, const RandomKey& key, ImageSize size,
                    GeometryPlan& plan);

// The part of the source image that the plan needs: the first crop, cut to the image; at least one pixel.
Box SourceRegion(const GeometryPlan& plan, ImageSize size);

// Purpose: working memory of RunGeometry. Threads: one at a time.
struct GeometryScratch {
  ResizeScratch resize;
  ImageBuffer images[2];  // of steps, by turns

  // Gives back buffers larger than `bytes`.
  void Trim(size_t bytes) {
    resize.Trim(bytes);
    for (ImageBuffer& image : images) image.Trim(bytes);
  }
};

// Runs all of the plan but the flip. `source` is the SourceRegion of an image of `size`. The result is valid
// until the source's memory or the scratch is used again; it is the source itself when the plan only cuts.
Result<ImageView> RunGeometry(const GeometryPlan& plan, ImageSize size, const ImageView& source,
                              GeometryScratch& scratch);

}  // namespace pinfeed
