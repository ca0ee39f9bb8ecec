// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.RandomHorizontalFlip and RandomVerticalFlip: mirror left to right, or top to bottom,
// with probability p.
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

class RandomFlip final : public Transform {
 public:
  RandomFlip(double p, bool vertical) : p_(p), vertical_(vertical) {}

  GpuForm gpu_form() const override { return vertical_ ? GpuForm::kNone : GpuForm::kMirror; }
  bool NeedsBytes() const override { return false; }
  bool MovesPixels() const override { return p_ > 0; }
  bool Varies() const override { return p_ > 0; }
  void Follow(ImageForm& /*form*/, const Report& /*report*/) const override {}
  Status Plan(GeometryPlanner& planner, SampleRandom random) const override {
    if (random.Unit() < p_) vertical_ ? planner.FlipVertically() : planner.FlipHorizontally();
    return OkStatus();
  }
  bool Show(ViewPlanner& view) const override {
    return view.Flip(vertical_ ? ViewStep::kFlipVertical : ViewStep::kFlip, p_);
  }

 private:
  const double p_;
  const bool vertical_;
};

}  // namespace

std::unique_ptr<const Transform> ParseRandomHorizontalFlip(TransformParameterReader& parameters) {
  return std::make_unique<RandomFlip>(parameters.Probability("p"), false);
}

std::unique_ptr<const Transform> ParseRandomVerticalFlip(TransformParameterReader& parameters) {
  return std::make_unique<RandomFlip>(parameters.Probability("p"), true);
}

}  // namespace pinfeed
