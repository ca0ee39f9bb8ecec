// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.RandomHorizontalFlip and RandomVerticalFlip: mirror with probability p.
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

class RandomFlip final : public Transform {
 public:
  RandomFlip(bool vertical, double p) : vertical_(vertical), p_(p) {}

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
  const bool vertical_;
  const double p_;
};

}  // namespace

std::unique_ptr<const Transform> ParseRandomHorizontalFlip(TransformParameterReader& parameters) {
  return std::make_unique<RandomFlip>(/*vertical=*/false, parameters.Probability("p"));
}

std::unique_ptr<const Transform> ParseRandomVerticalFlip(TransformParameterReader& parameters) {
  return std::make_unique<RandomFlip>(/*vertical=*/true, parameters.Probability("p"));
}

}  // namespace pinfeed
