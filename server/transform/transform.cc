// SPDX-License-Identifier: Apache-2.0
#include "server/transform/transform.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <variant>

#include "server/order/random.h"

namespace pinfeed {
namespace {

int32_t Side(uint32_t value) {
  return static_cast<int32_t>(value);
}  // checked to be at most kMaxImageSide

// torchvision rounds with Python's round(): halves to even, as the default rounding mode of lrint.
int32_t Round(double value) {
  return static_cast<int32_t>(std::lrint(value));
}

// torchvision.transforms.RandomResizedCrop.get_params: ten tries, then the largest central crop whose ratio
// is allowed.
Box RandomCropBox(const RandomResizedCrop& op, ImageSize size, SampleRandom random) {
  const double area = static_cast<double>(size.width) * size.height;
  const double log_min = std::log(op.ratio_min);
  const double log_max = std::log(op.ratio_max);
  for (int i = 0; i < 10; ++i) {
    const double target = area * random.Between(op.scale_min, op.scale_max);
    const double ratio = std::exp(random.Between(log_min, log_max));
    const double width = std::nearbyint(std::sqrt(target * ratio));
    const double height = std::nearbyint(std::sqrt(target / ratio));
    if (width < 1 || width > size.width || height < 1 || height > size.height) continue;
    Box box{0, 0, static_cast<int32_t>(width), static_cast<int32_t>(height)};
    box.y = static_cast<int32_t>(random.Below(static_cast<uint32_t>(size.height - box.height + 1)));
    box.x = static_cast<int32_t>(random.Below(static_cast<uint32_t>(size.width - box.width + 1)));
    return box;
  }
  const double ratio = static_cast<double>(size.width) / size.height;
  Box box{0, 0, size.width, size.height};
  if (ratio < op.ratio_min) {
    box.height = std::clamp(Round(size.width / op.ratio_min), 1, size.height);
  } else if (ratio > op.ratio_max) {
    box.width = std::clamp(Round(size.height * op.ratio_max), 1, size.width);
  }
  box.x = (size.width - box.width) / 2;
  box.y = (size.height - box.height) / 2;
  return box;
}

// torchvision.transforms.functional.center_crop along one side: pads (half of it, rounded down, before) when
// the image is smaller.
int32_t CenterCropStart(int32_t image, int32_t crop) {
  if (crop > image) return -((crop - image) / 2);
  return Round((image - crop) / 2.0);
}

// torchvision's rules when the aspect ratio is kept: the shorter side gets the size, the longer one
// int(size * long / short); if that is over max_size, or there is no size, the longer side gets max_size and
// the shorter one int(max_size * short / long) of what they were, here at least 1.
Result<ImageSize> ResizedSize(const Resize& op, ImageSize size) {
  if (op.height != 0) return ImageSize{Side(op.width), Side(op.height)};
  int64_t shorter = std::min(size.width, size.height);
  int64_t longer = std::max(size.width, size.height);
  if (op.width != 0) {
    longer = int64_t{op.width} * longer / shorter;
    shorter = op.width;
  }
  if (op.max_size != 0 && (op.width == 0 || longer > op.max_size)) {
    shorter = std::max<int64_t>(1, int64_t{op.max_size} * shorter / longer);
    longer = op.max_size;
  }
  if (shorter * longer > kMaxImagePixels) {
    return ResourceExhausted("resize of an image of " + std::to_string(size.width) + " x " +
                             std::to_string(size.height) + " pixels to sides of " + std::to_string(shorter) +
                             " and " + std::to_string(longer) + " is over the limit of " +
                             std::to_string(kMaxImagePixels) + " pixels");
  }
  const auto short_side = static_cast<int32_t>(shorter);
  const auto long_side = static_cast<int32_t>(longer);
  return size.width <= size.height ? ImageSize{short_side, long_side} : ImageSize{long_side, short_side};
}

// Purpose: appends transforms to a plan. Keeps what is pending in the plan's last step.
class Planner {
 public:
  Planner(GeometryPlan& plan, const RandomKey& key, ImageSize size) : plan_(plan), key_(key), input_(size) {
    plan_.steps.assign(1, {{0, 0, size.width, size.height}, size.width, size.height});
    plan_.flip = false;
  }

  Status Apply(const Resize& op, uint32_t /*index*/) {
    ASSIGN_OR_RETURN(const ImageSize size, ResizedSize(op, Current()));
    SetSize(size);
    return OkStatus();
  }
  Status Apply(const CenterCrop& op, uint32_t /*index*/) {
    const ImageSize size = Current();
    const int32_t width = Side(op.width);
    const int32_t height = Side(op.height);
    Cut({CenterCropStart(size.width, width), CenterCropStart(size.height, height), width, height});
    return OkStatus();
  }
  Status Apply(const RandomResizedCrop& op, uint32_t index) {
    Cut(RandomCropBox(op, Current(), Random(index)));
    SetSize({Side(op.width), Side(op.height)});
    return OkStatus();
  }
  Status Apply(const RandomHorizontalFlip& op, uint32_t index) {
    if (Random(index).Unit() < op.p) plan_.flip = !plan_.flip;
    return OkStatus();
  }
  Status Apply(const Normalize& /*op*/, uint32_t /*index*/) { return OkStatus(); }
  Status Apply(const ToDtype& /*op*/, uint32_t /*index*/) { return OkStatus(); }

 private:
  ImageSize Current() const { return {plan_.steps.back().width, plan_.steps.back().height}; }
  SampleRandom Random(uint32_t index) const { return {key_.seed, key_.epoch, key_.sample, index}; }
  static bool Resizes(const GeometryStep& step) {
    return step.width != step.crop.width || step.height != step.crop.height;
  }
  // Whether the step's crop loses any of its input.
  bool Cuts(const GeometryStep& step) const {
    const Box& crop = step.crop;
    return crop.x > 0 || crop.y > 0 || crop.x + crop.width < input_.width ||
           crop.y + crop.height < input_.height;
  }
  static bool Within(const Box& box, ImageSize size) {
    return box.x >= 0 && box.y >= 0 && box.x + box.width <= size.width && box.y + box.height <= size.height;
  }
  // A box of the image as the transforms see it, mirrored if a flip is pending.
  void Cut(Box box) {
    const ImageSize size = Current();
    if (plan_.flip) box.x = size.width - box.x - box.width;
    GeometryStep& last = plan_.steps.back();
    // A crop of a crop is one crop, unless the second reaches over the first one's border: the zeros there
    // are not what the first cut off.
    if (!Resizes(last) && (Within(box, size) || !Cuts(last))) {
      last.crop = {last.crop.x + box.x, last.crop.y + box.y, box.width, box.height};
      last.width = box.width;
      last.height = box.height;
    } else {
      input_ = size;
      plan_.steps.push_back({box, box.width, box.height});
    }
  }
  void SetSize(ImageSize size) {
    if (Resizes(plan_.steps.back())) {
      const ImageSize current = Current();
      if (current.width == size.width && current.height == size.height) return;
      input_ = current;
      plan_.steps.push_back({{0, 0, current.width, current.height}, size.width, size.height});
    } else {
      plan_.steps.back().width = size.width;
      plan_.steps.back().height = size.height;
    }
    plan_.steps.back().mirrored = plan_.flip && Resizes(plan_.steps.back());
  }

  GeometryPlan& plan_;
  const RandomKey& key_;
  ImageSize input_;  // of the last step
};

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

Status PlanGeometry(std::span<const Transform> transforms, const RandomKey& key, ImageSize size,
                    GeometryPlan& plan) {
  Planner planner(plan, key, size);
  for (uint32_t i = 0; i < transforms.size(); ++i) {
    RETURN_IF_ERROR(std::visit([&](const auto& op) { return planner.Apply(op, i); }, transforms[i]));
  }
  return OkStatus();
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
