// SPDX-License-Identifier: Apache-2.0
// What a dataset's images say of transforms, before any sample is seen: faults, one a line, and the shape and
// type that come out.
#include <variant>

#include "common/spec/feed_spec_check.h"
#include "server/transform/transform.h"

namespace pinfeed {
namespace {

// Purpose: follows an image through the transforms. Borrows the list of faults.
class Checker {
 public:
  Checker(std::optional<ImageSize> size, size_t channels, std::vector<std::string>& faults)
      : channels_(channels), faults_(faults) {
    if (size.has_value()) SetSize(size->width, size->height);
  }

  void Check(const Transform& transform, size_t index) {
    where_ = "transforms[" + std::to_string(index) + "] " + std::string(TransformName(transform)) + ": ";
    std::visit([this](const auto& op) { Apply(op); }, transform);
  }
  ImageOutcome outcome() const { return outcome_; }

 private:
  void Fault(const std::string& text) { faults_.push_back(where_ + text); }

  void SetSize(int32_t width, int32_t height) {
    outcome_.width = width;
    outcome_.height = height;
  }
  void SetSize(uint32_t width, uint32_t height) {
    SetSize(static_cast<int32_t>(width), static_cast<int32_t>(height));
  }

  void Apply(const Resize& op) {
    if (op.height != 0) return SetSize(op.width, op.height);
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
  void Apply(const CenterCrop& op) { SetSize(op.width, op.height); }
  void Apply(const RandomResizedCrop& op) { SetSize(op.width, op.height); }
  void Apply(const RandomHorizontalFlip& /*op*/) {}
  void Apply(const Normalize& op) {
    CountIsFine("mean", op.mean.size());
    CountIsFine("std", op.std.size());
    if (outcome_.dtype == DType::kUint8) outcome_.dtype = DType::kFloat32;
  }
  void Apply(const ToDtype& op) { outcome_.dtype = op.dtype; }
  void CountIsFine(const char* name, size_t count) {
    if (count == 1 || count == channels_) return;
    Fault(std::string(name) + " has " + std::to_string(count) + " values; 1" +
          (channels_ == 1 ? "" : " or " + std::to_string(channels_)) + " (one a channel) can be used");
  }

  const size_t channels_;
  std::vector<std::string>& faults_;
  std::string where_;
  ImageOutcome outcome_;
};

}  // namespace

std::optional<size_t> FirstGeometric(std::span<const Transform> transforms) {
  for (size_t i = 0; i < transforms.size(); ++i) {
    const auto* const flip = std::get_if<RandomHorizontalFlip>(&transforms[i]);
    const bool pointwise =
        std::holds_alternative<Normalize>(transforms[i]) || std::holds_alternative<ToDtype>(transforms[i]);
    if (flip != nullptr ? flip->p > 0 : !pointwise) return i;
  }
  return std::nullopt;
}

ImageOutcome CheckTransforms(std::span<const Transform> transforms, std::optional<ImageSize> size,
                             size_t channels, std::vector<std::string>& faults) {
  Checker checker(size, channels, faults);
  for (size_t i = 0; i < transforms.size(); ++i) checker.Check(transforms[i], i);
  return checker.outcome();
}

}  // namespace pinfeed
