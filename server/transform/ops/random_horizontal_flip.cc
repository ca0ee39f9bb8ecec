// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.RandomHorizontalFlip: mirrors left to right with probability p.
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

class RandomHorizontalFlip final : public Transform {
 public:
  explicit RandomHorizontalFlip(double p) : p_(p) {}

  GpuForm gpu_form() const override { return GpuForm::kMirror; }
  bool MovesPixels() const override { return p_ > 0; }
  bool Varies() const override { return p_ > 0; }
  void Follow(ImageForm& /*form*/, const Report& /*report*/) const override {}
  Status Plan(GeometryPlanner& planner, SampleRandom random) const override {
    if (random.Unit() < p_) planner.FlipHorizontally();
    return OkStatus();
  }
  bool Show(ViewPlanner& view) const override { return view.Flip(ViewStep::kFlip, p_); }

 private:
  const double p_;
};

}  // namespace

std::unique_ptr<const Transform> ParseRandomHorizontalFlip(TransformParameterReader& parameters) {
  return std::make_unique<RandomHorizontalFlip>(parameters.Probability("p"));
}

}  // namespace pinfeed
