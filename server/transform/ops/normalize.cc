// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.Normalize: (value - mean) / std. Divides uint8 pixels by 255 first and converts them
// to float32, so that no ToDtype is needed before it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxChannels = 64;

class Normalize final : public Transform {
 public:
  Normalize(std::vector<double> mean, std::vector<double> std)
      : mean_(std::move(mean)), std_(std::move(std)) {}

  GpuForm gpu_form() const override { return GpuForm::kTable; }
  void Follow(ImageForm& form, const Report& report) const override {
    CheckCount("mean", mean_.size(), form.channels, report);
    CheckCount("std", std_.size(), form.channels, report);
    if (form.dtype == DType::kUint8) form.dtype = DType::kFloat32;
  }
  void Recolour(size_t channel, PixelValues& pixels) const override {
    const float mean = OfChannel(mean_, channel);
    const float std = OfChannel(std_, channel);
    const bool integer = pixels.dtype == DType::kUint8;
    if (integer) pixels.dtype = DType::kFloat32;
    for (float& value : pixels.values)
      value = RoundTo(pixels.dtype, ((integer ? value / 255.0F : value) - mean) / std);
  }

 private:
  static float OfChannel(const std::vector<double>& values, size_t channel) {
    return static_cast<float>(values[values.size() == 1 ? 0 : channel]);
  }
  static void CheckCount(const std::string& name, size_t count, size_t channels, const Report& report) {
    if (count == 1 || count == channels) return;
    report(name + " has " + std::to_string(count) + " values; 1" +
           (channels == 1 ? "" : " or " + std::to_string(channels)) + " (one a channel) can be used");
  }

  const std::vector<double> mean_;
  const std::vector<double> std_;
};

std::vector<double> OneAChannel(TransformParameterReader& parameters, const std::string& name) {
  std::vector<double> values = parameters.Numbers(name);
  if (values.empty() || values.size() > kMaxChannels) {
    parameters.Fault(name, "has " + std::to_string(values.size()) + " values; give one, or one a channel");
  }
  if (std::ranges::any_of(values, [](double value) { return !std::isfinite(static_cast<float>(value)); }))
    parameters.Fault(name, "holds a value that is not finite, also as float32");
  return values;
}

}  // namespace

std::unique_ptr<const Transform> ParseNormalize(TransformParameterReader& parameters) {
  std::vector<double> mean = OneAChannel(parameters, "mean");
  std::vector<double> std = OneAChannel(parameters, "std");
  // In float32, where it divides.
  const auto bad = std::ranges::find_if(std, [](double value) {
    return std::isfinite(static_cast<float>(value)) && static_cast<float>(value) <= 0;
  });
  if (bad != std.end())
    parameters.Fault("std", "holds " + NumberText(*bad) + "; it must be above 0, also as float32");
  return std::make_unique<Normalize>(std::move(mean), std::move(std));
}

}  // namespace pinfeed
