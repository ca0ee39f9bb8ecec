// SPDX-License-Identifier: Apache-2.0
#include "server/transform/view_planner.h"

#include <algorithm>
#include <span>

namespace pinfeed {

ViewPlanner::ViewPlanner(uint64_t seed, ImageSize size) {
  view_.seed = seed;
  view_.source_width = view_.width = static_cast<uint32_t>(size.width);
  view_.source_height = view_.height = static_cast<uint32_t>(size.height);
  view_.positions_x = view_.positions_y = 1;
}

ImageSize ViewPlanner::size() const {
  return {static_cast<int32_t>(view_.width), static_cast<int32_t>(view_.height)};
}

bool ViewPlanner::Add(ViewStep::Kind kind, double p) {
  if (view_.step_count == kMaxViewSteps) return false;
  view_.steps[view_.step_count++] = {p, transform_, kind};
  return true;
}

bool ViewPlanner::Flip(ViewStep::Kind kind, double p) {
  return p <= 0 || Add(kind, p);
}

bool ViewPlanner::Crop(const Box& first, ImageSize positions, const Border& border) {
  const std::span steps(view_.steps, view_.step_count);
  // The pixels that a first crop cuts off are not in its border, but in that of both together.
  if (std::ranges::any_of(steps, [](const ViewStep& step) { return step.kind == ViewStep::kCrop; }))
    return false;
  if (!Add(ViewStep::kCrop, 0)) return false;
  view_.crop_x = first.x;
  view_.crop_y = first.y;
  view_.width = static_cast<uint32_t>(first.width);
  view_.height = static_cast<uint32_t>(first.height);
  view_.positions_x = static_cast<uint32_t>(positions.width);
  view_.positions_y = static_cast<uint32_t>(positions.height);
  view_.border = static_cast<uint32_t>(border.mode);
  std::ranges::copy(border.fill, view_.fill);
  return true;
}

}  // namespace pinfeed
