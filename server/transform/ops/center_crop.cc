// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.CenterCrop. Pads smaller images with zeros.
#include <cmath>

#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

// torchvision.transforms.functional.center_crop along one axis. A smaller side gets half of the missing
// pixels, rounded down, at its start. A larger side loses half of the excess, rounded to even, at its start.
int32_t Start(int32_t image, int32_t crop) {
  if (crop > image) return -((crop - image) / 2);
  return static_cast<int32_t>(std::lrint((image - crop) / 2.0));
}

class CenterCrop final : public Transform {
 public:
  explicit CenterCrop(ImageSize size) : size_(size) {}

  void Follow(ImageForm& form, const Report& /*report*/) const override {
    form.width = size_.width;
    form.height = size_.height;
  }
  Status Plan(GeometryPlanner& planner, SampleRandom /*random*/) const override {
    const ImageSize image = planner.size();
    planner.Crop(
        {Start(image.width, size_.width), Start(image.height, size_.height), size_.width, size_.height});
    return OkStatus();
  }
  bool Show(ViewPlanner& view) const override {
    const ImageSize image = view.size();
    return view.Crop(
        {Start(image.width, size_.width), Start(image.height, size_.height), size_.width, size_.height},
        {1, 1}, {});
  }

 private:
  const ImageSize size_;
};

}  // namespace

std::unique_ptr<const Transform> ParseCenterCrop(TransformParameterReader& parameters) {
  return std::make_unique<CenterCrop>(parameters.Size());
}

}  // namespace pinfeed
