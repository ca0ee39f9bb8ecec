// SPDX-License-Identifier: Apache-2.0
#include "server/transform/mask.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pinfeed {
namespace {

// A geometry step along one axis: `length` of `input` pixels, from `start` on, become `output` pixels.
struct AxisStep {
  int32_t input = 0;
  int32_t start = 0;
  int32_t length = 0;
  int32_t output = 0;
  bool mirrored = false;
  BorderMode border = BorderMode::kConstant;
};

// torch.nn.functional.interpolate(mode="nearest"): the floor of position times scale, in float32.
int32_t Nearest(int32_t position, int32_t length, int32_t output) {
  if (length == output) return position;
  const float scale = static_cast<float>(length) / static_cast<float>(output);
  return std::min(static_cast<int32_t>(std::floor(static_cast<float>(position) * scale)), length - 1);
}

// The input position of an output pixel of the step; -1: padding.
int32_t SourceOf(int32_t position, const AxisStep& step) {
  // Nearest resampling is not symmetric, so it must see the pixels in the order of the transforms.
  const int32_t in_crop =
      step.mirrored ? step.length - 1 - Nearest(step.output - 1 - position, step.length, step.output)
                    : Nearest(position, step.length, step.output);
  return PixelAt(step.start + in_crop, step.input, step.border);
}

AxisStep Horizontal(const GeometryStep& step, int32_t input) {
  return {input, step.crop.x, step.crop.width, step.width, step.resampling.mirrored, step.border.mode};
}
AxisStep Vertical(const GeometryStep& step, int32_t input) {
  return {input, step.crop.y, step.crop.height, step.height, step.resampling.upside_down, step.border.mode};
}

// The source position for each output position of the plan along one axis.
template <typename AxisOf>
void TraceBack(const GeometryPlan& plan, int32_t size, AxisOf axis_of, std::vector<int32_t>& positions) {
  positions.resize(static_cast<size_t>(axis_of(plan.steps.back(), 0).output));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  for (size_t i = plan.steps.size(); i-- > 0;) {
    const int32_t input = i == 0 ? size : axis_of(plan.steps[i - 1], 0).output;
    const AxisStep step = axis_of(plan.steps[i], input);
    for (int32_t& position : positions) position = position < 0 ? -1 : SourceOf(position, step);
  }
}

// Whether the columns are consecutive, so that a row can be copied at once.
bool IsRun(std::span<const int32_t> columns) {
  for (size_t x = 0; x < columns.size(); ++x) {
    if (columns[x] < 0 || columns[x] != columns[0] + static_cast<int32_t>(x)) return false;
  }
  return true;
}

// Pixels have kBytes bytes, or `pixel_bytes` if kBytes is 0.
template <size_t kBytes>
void GatherRow(const std::byte* row, std::span<const int32_t> columns, size_t pixel_bytes, std::byte* out) {
  const size_t bytes = kBytes != 0 ? kBytes : pixel_bytes;
  for (const int32_t column : columns) {
    if (column < 0) {
      std::memset(out, 0, bytes);
    } else {
      std::memcpy(out, row + static_cast<size_t>(column) * bytes, bytes);
    }
    out += bytes;
  }
}

auto GathererOf(size_t pixel_bytes) {
  switch (pixel_bytes) {
    case 1:
      return &GatherRow<1>;
    case 2:
      return &GatherRow<2>;
    case 4:
      return &GatherRow<4>;
    case 8:
      return &GatherRow<8>;
    default:
      return &GatherRow<0>;
  }
}

}  // namespace

bool IsIdentity(const GeometryPlan& plan, ImageSize size) {
  return !plan.flip && !plan.flip_vertical && plan.steps.size() == 1 &&
         plan.steps.front() == GeometryStep{{0, 0, size.width, size.height}, size.width, size.height};
}

void TransformMask(const MaskField& mask, const GeometryPlan& plan, ImageSize size,
                   std::span<const std::byte> source, std::span<std::byte> out, MaskScratch& scratch) {
  if (out.empty()) return;
  TraceBack(plan, size.width, Horizontal, scratch.columns);
  TraceBack(plan, size.height, Vertical, scratch.rows);
  if (plan.flip) std::reverse(scratch.columns.begin(), scratch.columns.end());
  if (plan.flip_vertical) std::reverse(scratch.rows.begin(), scratch.rows.end());
  const size_t source_row = static_cast<size_t>(size.width) * mask.pixel_bytes;
  const size_t out_row = scratch.columns.size() * mask.pixel_bytes;
  const bool run = IsRun(scratch.columns);
  const auto gather = GathererOf(mask.pixel_bytes);
  std::byte* to = out.data();
  for (size_t plane = 0; plane < mask.planes; ++plane) {
    const std::byte* const from = source.data() + plane * static_cast<size_t>(size.height) * source_row;
    for (const int32_t y : scratch.rows) {
      const std::byte* const row = from + static_cast<size_t>(std::max(y, 0)) * source_row;
      if (y < 0) {
        std::memset(to, 0, out_row);
      } else if (run) {
        std::memcpy(to, row + static_cast<size_t>(scratch.columns.front()) * mask.pixel_bytes, out_row);
      } else {
        gather(row, scratch.columns, mask.pixel_bytes, to);
      }
      to += out_row;
    }
  }
}

}  // namespace pinfeed
