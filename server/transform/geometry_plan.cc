// SPDX-License-Identifier: Apache-2.0
#include "server/transform/geometry_plan.h"

#include <algorithm>
#include <cstring>

namespace pinfeed {
namespace {

bool Resizes(const GeometryStep& step) {
  return step.width != step.crop.width || step.height != step.crop.height;
}

bool Within(const Box& box, ImageSize size) {
  return box.x >= 0 && box.y >= 0 && box.x + box.width <= size.width && box.y + box.height <= size.height;
}

bool Empty(const Box& box) {
  return box.width == 0 || box.height == 0;
}

Box Intersect(const Box& box, ImageSize size) {
  Box inside;
  inside.x = std::clamp(box.x, 0, size.width);
  inside.y = std::clamp(box.y, 0, size.height);
  inside.width = std::clamp(box.x + box.width, inside.x, size.width) - inside.x;
  inside.height = std::clamp(box.y + box.height, inside.y, size.height) - inside.y;
  return inside;
}

// Three times the luma of ITU-R BT.601 in 16-bit fixed point: what Pillow's convert("L") gives.
void WriteLuma(const ImageView& pixels, uint8_t* out) {
  for (int32_t y = 0; y < pixels.height; ++y) {
    const uint8_t* pixel = pixels.Row(y);
    for (int32_t x = 0; x < pixels.width; ++x, pixel += 3, out += 3) {
      const uint32_t luma = (pixel[0] * 19595U + pixel[1] * 38470U + pixel[2] * 7471U + 0x8000U) >> 16;
      out[0] = out[1] = out[2] = static_cast<uint8_t>(luma);
    }
  }
}

// `pixels`, which are `inside` of the box, with zeros around them.
void Pad(const ImageView& pixels, const Box& inside, const Box& box, uint8_t* out) {
  const size_t stride = 3 * static_cast<size_t>(box.width);
  const size_t before = 3 * static_cast<size_t>(inside.x - box.x);
  const size_t bytes = 3 * static_cast<size_t>(inside.width);
  for (int32_t y = 0; y < box.height; ++y, out += stride) {
    const int32_t row = box.y + y - inside.y;
    if (inside.width == 0 || row < 0 || row >= inside.height) {
      std::memset(out, 0, stride);
      continue;
    }
    std::memset(out, 0, before);
    std::memcpy(out + before, pixels.Row(row), bytes);
    std::memset(out + before + bytes, 0, stride - before - bytes);
  }
}

}  // namespace

GeometryPlanner::GeometryPlanner(GeometryPlan& plan, ImageSize size) : plan_(plan), input_(size) {
  plan_.steps.assign(1, {{0, 0, size.width, size.height}, size.width, size.height});
  plan_.flip = plan_.flip_vertical = false;
}

// Whether the last step's crop loses any of its input.
bool GeometryPlanner::LastStepCuts() const {
  const Box& crop = plan_.steps.back().crop;
  return crop.x > 0 || crop.y > 0 || crop.x + crop.width < input_.width ||
         crop.y + crop.height < input_.height;
}

void GeometryPlanner::Crop(Box box) {
  const ImageSize now = size();
  if (plan_.flip) box.x = now.width - box.x - box.width;
  if (plan_.flip_vertical) box.y = now.height - box.y - box.height;
  GeometryStep& last = plan_.steps.back();
  // A crop of a crop is one crop, unless the second reaches over the first one's border: the zeros there
  // are not what the first cut off.
  if (!Resizes(last) && (Within(box, now) || !LastStepCuts())) {
    last.crop = {last.crop.x + box.x, last.crop.y + box.y, box.width, box.height};
    last.width = box.width;
    last.height = box.height;
  } else {
    input_ = now;
    plan_.steps.push_back({box, box.width, box.height});
  }
}

void GeometryPlanner::Resize(ImageSize to) {
  if (Resizes(plan_.steps.back())) {
    const ImageSize now = size();
    if (now.width == to.width && now.height == to.height) return;
    input_ = now;
    plan_.steps.push_back({{0, 0, now.width, now.height}, to.width, to.height});
  } else {
    plan_.steps.back().width = to.width;
    plan_.steps.back().height = to.height;
  }
  GeometryStep& last = plan_.steps.back();
  last.mirrored = plan_.flip && Resizes(last);
  last.upside_down = plan_.flip_vertical && Resizes(last);
}

void GeometryPlanner::Grayscale() {
  if (Resizes(plan_.steps.back())) {
    input_ = size();
    plan_.steps.push_back({{0, 0, input_.width, input_.height}, input_.width, input_.height});
  }
  plan_.steps.back().grayscale = true;
}

Box SourceRegion(const GeometryPlan& plan, ImageSize size) {
  const Box region = Intersect(plan.steps.front().crop, size);
  return Empty(region) ? Box{0, 0, 1, 1} : region;
}

Result<ImageView> RunGeometry(const GeometryPlan& plan, ImageSize size, const ImageView& source,
                              GeometryScratch& scratch) {
  ImageView image = source;  // the pixels `inside` of the image that the step's crop is given in
  Box inside = Intersect(plan.steps.front().crop, size);
  size_t turn = 0;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const GeometryStep& step = plan.steps[i];
    if (inside != step.crop) {
      ASSIGN_OR_RETURN(uint8_t* const out, scratch.images[turn].Reserve(step.crop.width, step.crop.height));
      Pad(image, inside, step.crop, out);
      image = {out, step.crop.width, step.crop.height, 3 * static_cast<size_t>(step.crop.width)};
      turn ^= 1;
    }
    if (step.grayscale) {
      ASSIGN_OR_RETURN(uint8_t* const out, scratch.images[turn].Reserve(image.width, image.height));
      WriteLuma(image, out);
      image = {out, image.width, image.height, 3 * static_cast<size_t>(image.width)};
      turn ^= 1;
    }
    // Of the resized image only what the next step's crop will see is made.
    const ImageSize resized{step.width, step.height};
    const bool last = i + 1 == plan.steps.size();
    inside = last ? Box{0, 0, step.width, step.height} : Intersect(plan.steps[i + 1].crop, resized);
    if (Empty(inside)) continue;  // a crop of nothing but added zeros follows
    if (step.width == step.crop.width && step.height == step.crop.height) {
      image = image.Crop(inside);
      continue;
    }
    ASSIGN_OR_RETURN(uint8_t* const out, scratch.images[turn].Reserve(inside.width, inside.height));
    RETURN_IF_ERROR(ResizeImage(image, step.width, step.height, inside, scratch.resize, out));
    image = {out, inside.width, inside.height, 3 * static_cast<size_t>(inside.width)};
    turn ^= 1;
  }
  return image;
}

}  // namespace pinfeed
