// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.RandomHorizontalFlip and RandomVerticalFlip: mirror left to right, or top to bottom,
// with probability p.
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

class RandomFlip final : public Transform {
 public:
  RandomFlip(bool horizontal, double p) : horizontal_(horizontal), p_(p) {}

  GpuForm gpu_form() const override { return horizontal_ ? GpuForm::kMirror : GpuForm::kNone; }
  bool NeedsBytes() const override { return false; }
  bool MovesPixels() const override { return p_ > 0; }
  bool Varies() const override { return p_ > 0; }
  void Follow(ImageForm& /*form*/, const Report& /*report*/) const override {}
  Status Plan(GeometryPlanner& planner, SampleRandom random) const override {
    if (random.Unit() >= p_) return OkStatus();
    if (horizontal_)
      planner.FlipHorizontally();
    else
      planner.FlipVertically();
    return OkStatus();
  }
  bool Show(ViewPlanner& view) const override {
    return view.Flip(horizontal_ ? ViewStep::kFlip : ViewStep::kFlipVertical, p_);
  }

 private:
  const bool horizontal_;
  const double p_;
};

}  // namespace

std::unique_ptr<const Transform> ParseRandomHorizontalFlip(TransformParameterReader& parameters) {
  return std::make_unique<RandomFlip>(true, parameters.Probability("p"));
}

std::unique_ptr<const Transform> ParseRandomVerticalFlip(TransformParameterReader& parameters) {
  return std::make_unique<RandomFlip>(false, parameters.Probability("p"));
}

}  // namespace pinfeed
