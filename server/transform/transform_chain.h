// SPDX-License-Identifier: Apache-2.0
// The transforms of a feed, in order. In: their specs. Out: the shape and type of the resulting images, a
// geometry plan for each image, and a lookup table of pixel values for each channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/faults.h"
#include "common/spec/transform_spec.h"
#include "server/transform/geometry_plan.h"
#include "server/transform/transform.h"

namespace pinfeed {

// Identifies one sample in one epoch. All random choices for it derive from this key and the transform's
// index.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  uint64_t sample = 0;
};

// Purpose: the transforms of one feed, parsed and checked. A transform's index is part of its random key, so
// two equal transforms draw different numbers. Threads: immutable.
class TransformChain {
 public:
  TransformChain() = default;
  // Parses the specs, and writes the defaults of omitted parameters into them (ParameterReader). If it adds a
  // fault, the returned chain must not be used.
  static TransformChain Parse(std::vector<TransformSpec>& specs, Faults& faults);

  bool empty() const { return links_.empty(); }
  // Whether any transform has this form.
  bool Has(GpuForm form) const;
  // Whether the client's GPU kernel can apply every transform.
  bool FitsGpu() const { return !Has(GpuForm::kNone); }
  // The name of the first such transform for messages, such as "transforms[1] resize"; none: there is no such
  // transform.
  std::optional<std::string> FirstThatMovesPixels() const;
  std::optional<std::string> FirstThatFillsWithColour() const;

  // Returns the form of images of `form` after all transforms. The result is valid only if no fault
  // ("transforms[1] normalize: ...") was added.
  ImageForm Follow(ImageForm form, Faults& faults) const;
  // Plans the geometry of one image of `size` by the transforms [first, last), of which the default is all.
  // Returns the first error of a Transform::Plan.
  Status Plan(const RandomKey& key, ImageSize size, GeometryPlan& plan, size_t first = 0,
              size_t last = SIZE_MAX) const;
  // Returns what the transforms from `first` on do to images of `size`, for the client's kernel.
  // kInvalidArgument names the first that it cannot do.
  Result<SampleView> View(uint64_t seed, ImageSize size, size_t first) const;
  // How many transforms do the same to an image every time: those before the first that varies.
  size_t fixed() const;
  // Names what the first `count` transforms do to the geometry and luma of an image. Equal texts: the same
  // pixels.
  std::string GeometryText(size_t count) const;
  // Returns what the pixel values 0 to 255 of a channel become after all transforms.
  PixelValues Recolour(size_t channel) const;

 private:
  struct Link {
    std::string place;  // "transforms[1] resize"
    std::unique_ptr<const Transform> transform;
    std::string text;  // its name and all its parameters; see GeometryText
  };
  // The place of the first transform for which `matches` returns true.
  std::optional<std::string> First(bool (Transform::*matches)() const) const;

  std::vector<Link> links_;
};

}  // namespace pinfeed
