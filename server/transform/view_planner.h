// SPDX-License-Identifier: Apache-2.0
// Collects what a feed's transforms do to images that are resident on a GPU. In: the transforms' calls, one
// after the other. Out: a SampleView, from which the client's kernel makes the same pixels.
#pragma once

#include <cstdint>

#include "common/spec/sample_view.h"
#include "server/image/image.h"
#include "server/transform/geometry_plan.h"

namespace pinfeed {

// Purpose: builds a view. Each call returns false, and changes nothing, if the kernel cannot do that.
// Threads: one.
class ViewPlanner {
 public:
  // Of images of `size`.
  ViewPlanner(uint64_t seed, ImageSize size);

  // The index of the transform that calls next.
  void Begin(uint32_t transform) { transform_ = transform; }
  // The size of the image after the calls so far.
  ImageSize size() const;
  bool Flip(ViewStep::Kind kind, double p);
  // A crop at one of `positions`, counted from `first`: as many along each axis as its width and height say.
  bool Crop(const Box& first, ImageSize positions, const Border& border);

  const SampleView& view() const { return view_; }

 private:
  bool Add(ViewStep::Kind kind, double p);

  SampleView view_{};
  uint32_t transform_ = 0;
};

}  // namespace pinfeed
