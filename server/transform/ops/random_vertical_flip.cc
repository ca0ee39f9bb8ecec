// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.RandomVerticalFlip: mirrors top to bottom with probability p.
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

class RandomVerticalFlip final : public Transform {
 public:
  explicit RandomVerticalFlip(double p) : p_(p) {}

  bool NeedsBytes() const override { return false; }
  bool MovesPixels() const override { return p_ > 0; }
  bool Varies() const override { return p_ > 0; }
  void Follow(ImageForm& /*form*/, const Report& /*report*/) const override {}
  Status Plan(GeometryPlanner& planner, SampleRandom random) const override {
    if (random.Unit() < p_) planner.FlipVertically();
    return OkStatus();
  }
  bool Show(ViewPlanner& view) const override { return view.Flip(ViewStep::kFlipVertical, p_); }

 private:
  const double p_;
};

}  // namespace

std::unique_ptr<const Transform> ParseRandomVerticalFlip(TransformParameterReader& parameters) {
  return std::make_unique<RandomVerticalFlip>(parameters.Probability("p"));
}

}  // namespace pinfeed
