// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.Resize, antialiased.
#include <algorithm>
#include <utility>

#include "server/transform/ops/interpolation.h"
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

// Omitted values are 0.
struct ResizeTo {
  ImageSize size;        // the sides, whatever the aspect ratio
  int32_t shorter = 0;   // the shorter side, the aspect ratio being kept
  int32_t max_size = 0;  // the maximum of the longer side; if all else is 0, the longer side itself
};

class Resize final : public Transform {
 public:
  Resize(ResizeTo to, InterpolationChoice interpolation)
      : to_(to), interpolation_(std::move(interpolation)) {}

  bool Varies() const override { return interpolation_.Varies(); }
  void Follow(ImageForm& form, const Report& report) const override {
    if (to_.size.width == 0 && form.width == 0) return;
    const Result<ImageSize> size = SizeOf({form.width, form.height});
    if (!size.ok()) return report(size.status().message());
    form.width = size->width;
    form.height = size->height;
  }
  Status Plan(GeometryPlanner& planner, SampleRandom random) const override {
    ASSIGN_OR_RETURN(const ImageSize size, SizeOf(planner.size()));
    planner.Resize(size, interpolation_.Of(random));
    return OkStatus();
  }

 private:
  // torchvision's rules for keeping the aspect ratio: the shorter side becomes `size`, the longer one
  // int(size * long / short). If that exceeds max_size, or there is no size, the longer side becomes max_size
  // and the shorter one int(max_size * short / long), here at least 1.
  Result<ImageSize> SizeOf(ImageSize image) const {
    if (to_.size.width != 0) return to_.size;
    int64_t shorter = std::min(image.width, image.height);
    int64_t longer = std::max(image.width, image.height);
    if (to_.shorter != 0) {
      longer = int64_t{to_.shorter} * longer / shorter;
      shorter = to_.shorter;
    }
    if (to_.max_size != 0 && (to_.shorter == 0 || longer > to_.max_size)) {
      shorter = std::max<int64_t>(1, int64_t{to_.max_size} * shorter / longer);
      longer = to_.max_size;
    }
    if (shorter * longer > kMaxImagePixels) {
      return ResourceExhausted("resize of an image of " + std::to_string(image.width) + " x " +
                               std::to_string(image.height) + " pixels to sides of " +
                               std::to_string(shorter) + " and " + std::to_string(longer) +
                               " is over the limit of " + std::to_string(kMaxImagePixels) + " pixels");
    }
    ImageSize size{static_cast<int32_t>(shorter), static_cast<int32_t>(longer)};
    if (image.width > image.height) std::swap(size.width, size.height);
    return size;
  }

  const ResizeTo to_;
  const InterpolationChoice interpolation_;
};

}  // namespace

std::unique_ptr<const Transform> ParseResize(TransformParameterReader& parameters) {
  const std::vector<double> sides = parameters.Numbers("size");
  const double max_size = parameters.Number("max_size", 0);
  ResizeTo to;
  if (max_size != 0 && parameters.CheckSide("max_size", max_size))
    to.max_size = static_cast<int32_t>(max_size);
  if (sides.size() == 2) {
    to.size = parameters.Size(sides[0], sides[1]);
    if (max_size != 0)
      parameters.Fault("max_size", "goes with the length of the shorter side, not with height and width");
  } else if (sides.size() == 1) {
    if (parameters.CheckSide("size", sides[0])) to.shorter = static_cast<int32_t>(sides[0]);
    if (to.shorter != 0 && to.max_size != 0 && to.max_size <= to.shorter) {
      parameters.Fault("max_size", NumberText(max_size) + " is not above size, " + NumberText(sides[0]));
    }
  } else if (!sides.empty() || max_size == 0) {
    parameters.Fault("size",
                     "has " + std::to_string(sides.size()) + " values; give one, or height and width");
  }
  return std::make_unique<Resize>(to, InterpolationChoice(parameters));
}

}  // namespace pinfeed
