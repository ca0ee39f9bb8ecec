// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.RandomCrop: pads, then crops to a given size at a uniformly random position.
#include "server/transform/ops/padding.h"
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

class RandomCrop final : public Transform {
 public:
  RandomCrop(ImageSize size, const Padding& padding, bool pad_if_needed)
      : size_(size), padding_(padding), pad_if_needed_(pad_if_needed) {}

  bool FillsWithColour() const override { return padding_.FillsWithColour(); }
  bool Varies() const override { return true; }
  void Follow(ImageForm& form, const Report& report) const override {
    CheckFill(padding_, form, report);
    if (form.width != 0) {
      const Status fits = CheckFits(PaddingOf({form.width, form.height}), {form.width, form.height});
      if (!fits.ok()) report(fits.message());
    }
    form.width = size_.width;
    form.height = size_.height;
  }
  Status Plan(GeometryPlanner& planner, SampleRandom random) const override {
    const Padding padding = PaddingOf(planner.size());
    RETURN_IF_ERROR(CheckFits(padding, planner.size()).WithContext("random_crop"));
    const ImageSize padded = padding.Padded(planner.size());
    const auto start = [&random](int32_t image, int32_t crop) {
      return static_cast<int32_t>(random.Below(static_cast<uint32_t>(image - crop + 1)));
    };
    const int32_t y = start(padded.height, size_.height) - padding.top;
    const int32_t x = start(padded.width, size_.width) - padding.left;
    planner.Crop({x, y, size_.width, size_.height}, padding.border);
    return OkStatus();
  }
  bool Show(ViewPlanner& view) const override {
    const Padding padding = PaddingOf(view.size());
    const ImageSize padded = padding.Padded(view.size());
    return view.Crop({-padding.left, -padding.top, size_.width, size_.height},
                     {padded.width - size_.width + 1, padded.height - size_.height + 1}, padding.border);
  }

 private:
  // Like torchvision's v2, adds the missing pixels on both sides.
  Padding PaddingOf(ImageSize image) const {
    Padding padding = padding_;
    if (!pad_if_needed_) return padding;
    const ImageSize padded = padding.Padded(image);
    if (padded.width < size_.width) {
      padding.left += size_.width - padded.width;
      padding.right += size_.width - padded.width;
    }
    if (padded.height < size_.height) {
      padding.top += size_.height - padded.height;
      padding.bottom += size_.height - padded.height;
    }
    return padding;
  }
  Status CheckFits(const Padding& padding, ImageSize image) const {
    const ImageSize padded = padding.Padded(image);
    if (padded.width >= size_.width && padded.height >= size_.height) return OkStatus();
    return InvalidArgument("an image of " + std::to_string(image.width) + " x " +
                           std::to_string(image.height) + " pixels is smaller than the crop of " +
                           std::to_string(size_.width) + " x " + std::to_string(size_.height) +
                           "; use pad_if_needed, more padding, or a resize before it");
  }

  const ImageSize size_;
  const Padding padding_;
  const bool pad_if_needed_;
};

}  // namespace

std::unique_ptr<const Transform> ParseRandomCrop(TransformParameterReader& parameters) {
  const ImageSize size = parameters.Size();
  const Padding padding = ReadPadding(parameters);
  return std::make_unique<RandomCrop>(size, padding, parameters.Flag("pad_if_needed"));
}

}  // namespace pinfeed
