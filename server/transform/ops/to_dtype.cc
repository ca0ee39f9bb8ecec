// SPDX-License-Identifier: Apache-2.0
// torchvision.transforms.v2.ToDtype: changes the element type. Floating point to uint8 clamps to [0, 255] and
// truncates.
#include "server/transform/ops/registry.h"

namespace pinfeed {
namespace {

class ToDtype final : public Transform {
 public:
  ToDtype(DType dtype, bool scale) : dtype_(dtype), scale_(scale) {}

  GpuForm gpu_form() const override { return GpuForm::kTable; }
  void Follow(ImageForm& form, const Report& /*report*/) const override { form.dtype = dtype_; }
  // torchvision scales by 255.999 when it converts to uint8.
  void Recolour(size_t /*channel*/, PixelValues& pixels) const override {
    const bool widens = pixels.dtype == DType::kUint8 && dtype_ != DType::kUint8;
    const bool narrows = pixels.dtype != DType::kUint8 && dtype_ == DType::kUint8;
    pixels.dtype = dtype_;
    for (float& value : pixels.values) {
      if (scale_ && widens) value /= 255.0F;
      if (scale_ && narrows) value *= 255.999F;
      value = RoundTo(dtype_, value);
    }
  }

 private:
  const DType dtype_;
  const bool scale_;  // maps 255 to 1
};

}  // namespace

std::unique_ptr<const Transform> ParseToDtype(TransformParameterReader& parameters) {
  const bool scale = parameters.Flag("scale");
  const Result<DType> dtype = DTypeFromName(parameters.Word("dtype", ""));
  for (const DType possible : {DType::kUint8, DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    if (dtype.ok() && *dtype == possible) return std::make_unique<ToDtype>(possible, scale);
  }
  parameters.Fault("dtype", "is none of uint8, float32, float16, bfloat16");
  return std::make_unique<ToDtype>(DType::kUint8, false);
}

}  // namespace pinfeed
