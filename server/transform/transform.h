// SPDX-License-Identifier: Apache-2.0
// One transform of images. Each is a file of server/transform/ops, named in the registry (ops/registry.cc);
// a TransformChain runs them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/spec/tensor_spec.h"
#include "server/image/image.h"
#include "server/order/random.h"
#include "server/transform/geometry_plan.h"
#include "server/transform/parameters.h"

namespace pinfeed {

// What images are after a transform, or before it.
struct ImageForm {
  int32_t width = 0;  // 0: not the same for every sample
  int32_t height = 0;
  size_t channels = 3;  // 1 or 3
  DType dtype = DType::kUint8;
};

// What the client's kernel can do in place of the daemon.
enum class GpuForm {
  kNone,
  kMirror,  // told by a mark a sample
  kTable,   // what each pixel value becomes
};

// What the 256 values of a channel's pixels have become.
struct PixelValues {
  DType dtype = DType::kUint8;
  std::array<float, 256> values;
};

// Purpose: one transform with its parameters. A transform of geometry implements Plan, one of single values
// Recolour. Threads: immutable.
class Transform {
 public:
  using Report = std::function<void(const std::string& fault)>;

  Transform() = default;
  virtual ~Transform() = default;
  Transform(const Transform&) = delete;
  Transform& operator=(const Transform&) = delete;

  virtual GpuForm gpu_form() const { return GpuForm::kNone; }
  // Whether it cannot stand behind one that makes floating-point values.
  virtual bool NeedsBytes() const { return gpu_form() == GpuForm::kNone; }
  // Whether a mask must follow it.
  virtual bool MovesPixels() const { return gpu_form() != GpuForm::kTable; }

  // Whether it adds pixels that are not zero, which a mask could not follow.
  virtual bool FillsWithColour() const { return false; }

  // Changes the form of images as the transform does, and reports why such images do not fit it.
  virtual void Follow(ImageForm& form, const Report& report) const = 0;
  // Adds itself to the plan of one image. kResourceExhausted when a step is over kMaxImagePixels.
  virtual Status Plan(GeometryPlanner& /*planner*/, SampleRandom /*random*/) const { return OkStatus(); }
  // In float32, rounded to the element type (RoundTo).
  virtual void Recolour(size_t /*channel*/, PixelValues& /*pixels*/) const {}
};

// `value` as an element of the type has it: to nearest, halves to even; uint8 is cut to [0, 255], towards
// zero.
float RoundTo(DType dtype, float value);

using ParseTransform = std::unique_ptr<const Transform> (*)(Parameters& parameters);

// How the transform of that name reads its parameters; null if there is none.
ParseTransform FindTransform(std::string_view name);

}  // namespace pinfeed
