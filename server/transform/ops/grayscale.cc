// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.Grayscale: one channel of luma, or three equal ones.
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

class Grayscale final : public Transform {
 public:
  explicit Grayscale(size_t channels) : channels_(channels) {}

  bool MovesPixels() const override { return false; }
  void Follow(ImageForm& form, const Report& /*report*/) const override { form.channels = channels_; }
  Status Plan(GeometryPlanner& planner, SampleRandom /*random*/) const override {
    planner.Grayscale();
    return OkStatus();
  }

 private:
  const size_t channels_;
};

}  // namespace

std::unique_ptr<const Transform> ParseGrayscale(TransformParameterReader& parameters) {
  const double channels = parameters.Number("num_output_channels", 1);
  if (channels != 1 && channels != 3)
    parameters.Fault("num_output_channels", NumberText(channels) + " is neither 1 nor 3");
  return std::make_unique<Grayscale>(channels == 3 ? 3 : 1);
}

}  // namespace pinfeed
