// SPDX-License-Identifier: Apache-2.0
// What can be said of transforms before any sample is seen: faults, one a line, and the shape and type that
// come out.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <variant>

#include "server/pipeline/transform.h"

namespace pinfeed {
namespace {

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string_view Name(const Transform& transform) {
  static constexpr std::string_view kNames[] = {
      "resize", "center_crop", "random_resized_crop", "random_horizontal_flip", "normalize", "to_dtype"};
  static_assert(std::size(kNames) == std::variant_size_v<Transform>);
  return kNames[transform.index()];
}

bool IsFloating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

// Purpose: follows an image through the transforms. Borrows the list of faults.
class Checker {
 public:
  Checker(std::optional<ImageSize> size, size_t channels, std::vector<std::string>& faults)
      : channels_(channels), faults_(faults) {
    if (size.has_value()) SetSize(size->width, size->height);
  }

  void Check(const Transform& transform, size_t index) {
    where_ = "transforms[" + std::to_string(index) + "] " + std::string(Name(transform)) + ": ";
    std::visit([this](const auto& op) { Apply(op); }, transform);
  }
  ImageOutcome outcome() const { return outcome_; }

 private:
  void Fault(const std::string& text) { faults_.push_back(where_ + text); }

  bool SideIsFine(const char* name, uint32_t side) {
    if (side >= 1 && side <= kMaxImageSide) return true;
    Fault(std::string(name) + " " + std::to_string(side) + " is not between 1 and " +
          std::to_string(kMaxImageSide));
    return false;
  }
  bool SizeIsFine(uint32_t height, uint32_t width) {
    const bool height_is_fine = SideIsFine("height", height);
    if (!SideIsFine("width", width) || !height_is_fine) return false;
    if (int64_t{height} * width <= kMaxImagePixels) return true;
    Fault(std::to_string(height) + " x " + std::to_string(width) + " is over the limit of " +
          std::to_string(kMaxImagePixels) + " pixels");
    return false;
  }
  // "scale", "ratio": two finite values in order, the first above 0.
  void RangeIsFine(const std::string& name, double low, double high) {
    if (!std::isfinite(low) || low <= 0) Fault(name + "_min " + Number(low) + " is not a number above 0");
    if (!std::isfinite(high) || high <= 0) Fault(name + "_max " + Number(high) + " is not a number above 0");
    if (low > high) Fault(name + "_min " + Number(low) + " is above " + name + "_max " + Number(high));
  }
  void GeometryIsAllowed() {
    if (pointwise_)
      Fault("comes after normalize or to_dtype, but works on uint8 pixels; move it before them");
  }
  void SetSize(int32_t width, int32_t height) {
    outcome_.width = width;
    outcome_.height = height;
  }
  void SetSize(uint32_t width, uint32_t height) {
    SetSize(static_cast<int32_t>(width), static_cast<int32_t>(height));
  }

  void Apply(const Resize& op) {
    GeometryIsAllowed();
    if (op.height != 0) {
      if (SizeIsFine(op.height, op.width)) SetSize(op.width, op.height);
      return;
    }
    if (op.max_size != 0 && !SideIsFine("max_size", op.max_size)) return;
    if (op.max_size == 0 || op.width != 0) {
      if (!SideIsFine("size", op.width)) return;
    }
    if (outcome_.width == 0) return;
    GeometryPlan plan;  // the size is known: what the transform makes of it is as well
    const Transform resize = op;
    if (const Status status = PlanGeometry({&resize, 1}, {}, {outcome_.width, outcome_.height}, plan);
        !status.ok()) {
      Fault(status.message());
      return;
    }
    SetSize(plan.steps.back().width, plan.steps.back().height);
  }
  void Apply(const CenterCrop& op) {
    GeometryIsAllowed();
    if (SizeIsFine(op.height, op.width)) SetSize(op.width, op.height);
  }
  void Apply(const RandomResizedCrop& op) {
    GeometryIsAllowed();
    if (SizeIsFine(op.height, op.width)) SetSize(op.width, op.height);
    RangeIsFine("scale", op.scale_min, op.scale_max);
    if (op.scale_max > 1) Fault("scale_max " + Number(op.scale_max) + " is above 1, the whole area");
    RangeIsFine("ratio", op.ratio_min, op.ratio_max);
  }
  void Apply(const RandomHorizontalFlip& op) {
    if (!(op.p >= 0 && op.p <= 1)) Fault("p " + Number(op.p) + " is not between 0 and 1");
  }
  void Apply(const Normalize& op) {
    pointwise_ = true;
    CountIsFine("mean", op.mean.size());
    CountIsFine("std", op.std.size());
    for (const double mean : op.mean) {
      if (!std::isfinite(mean)) Fault("mean " + Number(mean) + " is not a finite number");
    }
    for (const double std : op.std) {
      // In float32, where it divides.
      if (!std::isfinite(std) || static_cast<float>(std) <= 0)
        Fault("std " + Number(std) + " is not a number above 0");
    }
    if (outcome_.dtype == DType::kUint8) outcome_.dtype = DType::kFloat32;
  }
  void Apply(const ToDtype& op) {
    if (op.dtype != DType::kUint8 && !IsFloating(op.dtype)) {
      Fault("dtype " + std::string(DTypeName(op.dtype)) + " is not one of uint8, float32, float16, bfloat16");
      return;
    }
    if (op.dtype != DType::kUint8 || outcome_.dtype != DType::kUint8) pointwise_ = true;
    outcome_.dtype = op.dtype;
  }
  void CountIsFine(const char* name, size_t count) {
    if (count == 1 || count == channels_) return;
    Fault(std::string(name) + " has " + std::to_string(count) + " values; 1" +
          (channels_ == 1 ? "" : " or " + std::to_string(channels_)) + " (one a channel) can be used");
  }

  const size_t channels_;
  std::vector<std::string>& faults_;
  std::string where_;
  ImageOutcome outcome_;
  bool pointwise_ = false;
};

}  // namespace

ImageOutcome CheckTransforms(std::span<const Transform> transforms, std::optional<ImageSize> size,
                             size_t channels, std::vector<std::string>& faults) {
  Checker checker(size, channels, faults);
  for (size_t i = 0; i < transforms.size(); ++i) checker.Check(transforms[i], i);
  return checker.outcome();
}

}  // namespace pinfeed
