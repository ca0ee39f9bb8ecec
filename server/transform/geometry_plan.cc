// SPDX-License-Identifier: Apache-2.0
#include "server/transform/geometry_plan.h"

#include <algorithm>
#include <array>
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

struct PixelRange {
  int32_t begin = 0;
  int32_t size = 0;
};

// Along one axis: which pixels of an image with `size` of them are needed for the `count` positions from
// `first` on. Positions outside the image get their pixel by `mode`.
PixelRange Needed(int32_t first, int32_t count, int32_t size, BorderMode mode) {
  const int32_t begin = std::clamp(first, 0, size);
  const int32_t end = std::clamp(first + count, begin, size);
  if (mode == BorderMode::kConstant || end - begin == count) return {begin, end - begin};
  int32_t least = size - 1;
  int32_t most = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t pixel = PixelAt(first + i, size, mode);
    least = std::min(least, pixel);
    most = std::max(most, pixel);
  }
  return {least, most - least + 1};
}

// The part of an image of `size` that the step's crop needs.
Box Needed(const GeometryStep& step, ImageSize size) {
  const PixelRange x = Needed(step.crop.x, step.crop.width, size.width, step.border.mode);
  const PixelRange y = Needed(step.crop.y, step.crop.height, size.height, step.border.mode);
  return {x.begin, y.begin, x.size, y.size};
}

// Writes the luma of ITU-R BT.601 to all three channels, in 16-bit fixed point like Pillow's convert("L").
void WriteLuma(const ImageView& pixels, uint8_t* out) {
  for (int32_t y = 0; y < pixels.height; ++y) {
    const uint8_t* pixel = pixels.Row(y);
    for (int32_t x = 0; x < pixels.width; ++x, pixel += 3, out += 3) {
      const uint32_t luma = (pixel[0] * 19595U + pixel[1] * 38470U + pixel[2] * 7471U + 0x8000U) >> 16;
      out[0] = out[1] = out[2] = static_cast<uint8_t>(luma);
    }
  }
}

// Writes the step's crop of an image of `size`, padded, to `out`. `pixels` are the part `inside` of that
// image.
void PadAround(const ImageView& pixels, const Box& inside, ImageSize size, const GeometryStep& step,
               std::vector<int32_t>& columns, uint8_t* out) {
  const Box& crop = step.crop;
  columns.resize(static_cast<size_t>(crop.width));
  for (int32_t x = 0; x < crop.width; ++x)
    columns[static_cast<size_t>(x)] = PixelAt(crop.x + x, size.width, step.border.mode);
  const int32_t first = std::clamp(-crop.x, 0, crop.width);  // columns [first, last) lie within the image
  const int32_t last = std::clamp(size.width - crop.x, first, crop.width);
  const uint8_t* const fill = step.border.fill.data();
  for (int32_t y = 0; y < crop.height; ++y, out += 3 * static_cast<size_t>(crop.width)) {
    const int32_t row = PixelAt(crop.y + y, size.height, step.border.mode);
    const uint8_t* const from = row < 0 ? nullptr : pixels.Row(row - inside.y);
    for (int32_t x = 0; x < crop.width; ++x) {
      if (x == first && from != nullptr && last > first) {
        std::memcpy(out + 3 * static_cast<size_t>(x), from + 3 * static_cast<size_t>(crop.x + x - inside.x),
                    3 * static_cast<size_t>(last - first));
        x = last - 1;
        continue;
      }
      const int32_t column = columns[static_cast<size_t>(x)];
      const bool filled = from == nullptr || column < 0;
      std::memcpy(out + 3 * static_cast<size_t>(x),
                  filled ? fill : from + 3 * static_cast<size_t>(column - inside.x), 3);
    }
  }
}

}  // namespace

GeometryPlanner::GeometryPlanner(GeometryPlan& plan, ImageSize size) : plan_(plan), input_(size) {
  plan_.steps.assign(1, {{0, 0, size.width, size.height}, size.width, size.height});
  plan_.flip = plan_.flip_vertical = false;
}

// Padding the last step's result must give the same pixels as padding its input. That holds if its crop has
// cut nothing off, its grayscale would not change the fill colour, and any padding so far is constant, of the
// same colour.
bool GeometryPlanner::CanExtendLastStep(const Border& border) const {
  const GeometryStep& last = plan_.steps.back();
  const Box& crop = last.crop;
  if (crop.x > 0 || crop.y > 0 || crop.x + crop.width < input_.width || crop.y + crop.height < input_.height)
    return false;  // pixels that were cut off would reappear
  const std::array<uint8_t, 3>& fill = border.fill;
  if (last.grayscale && (fill[0] != fill[1] || fill[1] != fill[2])) return false;
  return Within(crop, input_) || (border.mode == BorderMode::kConstant && border == last.border);
}

void GeometryPlanner::Crop(Box box, Border border) {
  const ImageSize now = size();
  if (plan_.flip) box.x = now.width - box.x - box.width;
  if (plan_.flip_vertical) box.y = now.height - box.y - box.height;
  GeometryStep& last = plan_.steps.back();
  const bool within = Within(box, now);
  // Merges a crop of a crop into one crop where possible.
  if (!Resizes(last) && (within || CanExtendLastStep(border))) {
    last.crop = {last.crop.x + box.x, last.crop.y + box.y, box.width, box.height};
    last.width = box.width;
    last.height = box.height;
    if (!within) last.border = border;
  } else {
    input_ = now;
    plan_.steps.push_back({box, box.width, box.height, within ? Border() : border});
  }
}

void GeometryPlanner::Resize(ImageSize to, Interpolation interpolation) {
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
  if (Resizes(last)) last.resampling = {interpolation, plan_.flip, plan_.flip_vertical};
}

void GeometryPlanner::Grayscale() {
  if (Resizes(plan_.steps.back())) {
    input_ = size();
    plan_.steps.push_back({{0, 0, input_.width, input_.height}, input_.width, input_.height});
  }
  plan_.steps.back().grayscale = true;
}

Box SourceRegion(const GeometryPlan& plan, ImageSize size) {
  const Box region = Needed(plan.steps.front(), size);
  return Empty(region) ? Box{0, 0, 1, 1} : region;
}

Result<ImageView> RunGeometry(const GeometryPlan& plan, ImageSize size, const ImageView& source,
                              GeometryScratch& scratch) {
  ImageView image = source;  // the part `inside` of the image to which the step's crop refers
  Box inside = Needed(plan.steps.front(), size);
  ImageSize input = size;
  size_t turn = 0;  // the scratch image to write next
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const GeometryStep& step = plan.steps[i];
    if (inside != step.crop) {
      ASSIGN_OR_RETURN(uint8_t* const out, scratch.images[turn].Reserve(step.crop.width, step.crop.height));
      PadAround(image, inside, input, step, scratch.columns, out);
      image = {out, step.crop.width, step.crop.height, 3 * static_cast<size_t>(step.crop.width)};
      turn ^= 1;
    }
    if (step.grayscale) {
      ASSIGN_OR_RETURN(uint8_t* const out, scratch.images[turn].Reserve(image.width, image.height));
      WriteLuma(image, out);
      image = {out, image.width, image.height, 3 * static_cast<size_t>(image.width)};
      turn ^= 1;
    }
    // Computes only the part of the resized image that the next step's crop needs.
    const ImageSize resized{step.width, step.height};
    const bool last = i + 1 == plan.steps.size();
    inside = last ? Box{0, 0, step.width, step.height} : Needed(plan.steps[i + 1], resized);
    input = resized;
    if (Empty(inside)) continue;  // the next crop consists of padding only
    if (step.width == step.crop.width && step.height == step.crop.height) {
      image = image.Crop(inside);
      continue;
    }
    ASSIGN_OR_RETURN(uint8_t* const out, scratch.images[turn].Reserve(inside.width, inside.height));
    RETURN_IF_ERROR(
        ResizeImage(image, step.width, step.height, step.resampling, inside, scratch.resize, out));
    image = {out, inside.width, inside.height, 3 * static_cast<size_t>(inside.width)};
    turn ^= 1;
  }
  return image;
}

}  // namespace pinfeed
