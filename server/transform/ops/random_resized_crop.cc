// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.RandomResizedCrop: cuts out a random part and resizes it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "server/transform/ops/interpolation.h"
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

struct Range {
  double least = 0;
  double most = 0;
};

// torchvision uses Python's round(): ties to even, like lrint in the default rounding mode.
int32_t Round(double value) {
  return static_cast<int32_t>(std::lrint(value));
}

class RandomResizedCrop final : public Transform {
 public:
  RandomResizedCrop(ImageSize size, Range scale, Range ratio, InterpolationChoice interpolation)
      : size_(size), scale_(scale), ratio_(ratio), interpolation_(std::move(interpolation)) {}

  bool Varies() const override { return true; }
  void Follow(ImageForm& form, const Report& /*report*/) const override {
    form.width = size_.width;
    form.height = size_.height;
  }
  Status Plan(GeometryPlanner& planner, SampleRandom random) const override {
    planner.Crop(CropBox(planner.size(), random));
    planner.Resize(size_, interpolation_.Of(random));
    return OkStatus();
  }

 private:
  // torchvision.transforms.RandomResizedCrop.get_params: ten tries, then the largest central crop with an
  // allowed ratio.
  Box CropBox(ImageSize image, SampleRandom& random) const {
    const double area = static_cast<double>(image.width) * image.height;
    const double log_least = std::log(ratio_.least);
    const double log_most = std::log(ratio_.most);
    for (int i = 0; i < 10; ++i) {
      const double target = area * random.Between(scale_.least, scale_.most);
      const double ratio = std::exp(random.Between(log_least, log_most));
      const double width = std::nearbyint(std::sqrt(target * ratio));
      const double height = std::nearbyint(std::sqrt(target / ratio));
      if (width < 1 || width > image.width || height < 1 || height > image.height) continue;
      Box box{0, 0, static_cast<int32_t>(width), static_cast<int32_t>(height)};
      box.y = static_cast<int32_t>(random.Below(static_cast<uint32_t>(image.height - box.height + 1)));
      box.x = static_cast<int32_t>(random.Below(static_cast<uint32_t>(image.width - box.width + 1)));
      return box;
    }
    const double ratio = static_cast<double>(image.width) / image.height;
    Box box{0, 0, image.width, image.height};
    if (ratio < ratio_.least) {
      box.height = std::clamp(Round(image.width / ratio_.least), 1, image.height);
    } else if (ratio > ratio_.most) {
      box.width = std::clamp(Round(image.height * ratio_.most), 1, image.width);
    }
    box.x = (image.width - box.width) / 2;
    box.y = (image.height - box.height) / 2;
    return box;
  }

  const ImageSize size_;
  const Range scale_;  // shares of the image's area
  const Range ratio_;  // width / height
  const InterpolationChoice interpolation_;
};

Range ReadRange(TransformParameterReader& parameters, const std::string& name, Range unset) {
  const std::vector<double> values = parameters.Numbers(name, {unset.least, unset.most});
  if (values.size() != 2) {
    parameters.Fault(name,
                     "has " + std::to_string(values.size()) + " values; give the least and the greatest");
    return unset;
  }
  const Range range{values[0], values[1]};
  if (std::isfinite(range.least) && std::isfinite(range.most) && range.least > 0 && range.least <= range.most)
    return range;
  parameters.Fault(name, "must be two finite numbers, 0 < least <= greatest");
  return unset;
}

}  // namespace

std::unique_ptr<const Transform> ParseRandomResizedCrop(TransformParameterReader& parameters) {
  const ImageSize size = parameters.Size();
  const Range scale = ReadRange(parameters, "scale", {0.08, 1.0});
  if (scale.most > 1) parameters.Fault("scale", NumberText(scale.most) + " is above 1, the whole area");
  const Range ratio = ReadRange(parameters, "ratio", {3.0 / 4.0, 4.0 / 3.0});
  return std::make_unique<RandomResizedCrop>(size, scale, ratio, InterpolationChoice(parameters));
}

}  // namespace pinfeed
