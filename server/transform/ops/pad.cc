// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.Pad.
#include "server/transform/ops/padding.h"
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

class Pad final : public Transform {
 public:
  explicit Pad(const Padding& padding) : padding_(padding) {}

  bool FillsWithColour() const override { return padding_.FillsWithColour(); }
  void Follow(ImageForm& form, const Report& report) const override {
    CheckFill(padding_, form, report);
    if (form.width == 0) return;
    const ImageSize size = padding_.Padded({form.width, form.height});
    form.width = size.width;
    form.height = size.height;
    if (int64_t{size.width} * size.height > kMaxImagePixels) {
      report("makes images of " + std::to_string(size.width) + " x " + std::to_string(size.height) +
             " pixels, over the limit of " + std::to_string(kMaxImagePixels) + " pixels");
    }
  }
  Status Plan(GeometryPlanner& planner, SampleRandom /*random*/) const override {
    const ImageSize size = padding_.Padded(planner.size());
    planner.Crop({-padding_.left, -padding_.top, size.width, size.height}, padding_.border);
    return OkStatus();
  }
  bool Show(ViewPlanner& view) const override {
    const ImageSize size = padding_.Padded(view.size());
    return view.Crop({-padding_.left, -padding_.top, size.width, size.height}, {1, 1}, padding_.border);
  }

 private:
  const Padding padding_;
};

}  // namespace

std::unique_ptr<const Transform> ParsePad(TransformParameterReader& parameters) {
  return std::make_unique<Pad>(ReadPadding(parameters));
}

}  // namespace pinfeed
