// SPDX-License-Identifier: Apache-2.0
// The transforms of a feed, in their order. In: their specs. Out: what images become, and the plan of each.
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

struct RandomKey {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  uint64_t sample = 0;
};

// Purpose: checked transforms. The index of a transform is part of its random key. Threads: immutable.
class TransformChain {
 public:
  TransformChain() = default;
  // Reads the specs and adds to them what was not given (Parameters). With a fault the chain counts for
  // nothing.
  static TransformChain Parse(std::vector<TransformSpec>& specs, Faults& faults);

  bool empty() const { return links_.empty(); }
  bool Has(GpuForm form) const;
  // Whether the client's kernel can do all of it.
  bool FitsGpu() const { return !Has(GpuForm::kNone); }
  // The first transform that moves pixels, as "transforms[1] resize".
  std::optional<std::string> FirstThatMovesPixels() const;
  std::optional<std::string> FirstThatFillsWithColour() const;

  // What becomes of images of that form. Appends one line a fault to `faults` ("transforms[1] normalize:
  // ..."); the result counts only if there was none.
  ImageForm Follow(ImageForm form, std::vector<std::string>& faults) const;
  // Plans the geometry of one image of `size`. kResourceExhausted when a step is over kMaxImagePixels.
  Status Plan(const RandomKey& key, ImageSize size, GeometryPlan& plan) const;
  // What becomes of the values 0 to 255 of a channel.
  PixelValues Recolour(size_t channel) const;

 private:
  struct Link {
    std::string place;  // "transforms[1] resize"
    std::unique_ptr<const Transform> transform;
  };
  std::optional<std::string> First(bool (Transform::*is)() const) const;

  std::vector<Link> links_;
};

}  // namespace pinfeed
