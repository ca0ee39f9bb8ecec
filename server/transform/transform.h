// SPDX-License-Identifier: Apache-2.0
// The interface of one image transform. Each transform is a file in server/transform/ops and an entry in
// ops/registry.cc. A TransformChain runs them in order. In: a spec's parameters. Out: a step of the image's
// GeometryPlan, or new values for its pixels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/sample_random.h"
#include "common/spec/feed_spec.h"
#include "common/spec/tensor_spec.h"
#include "server/image/image.h"
#include "server/transform/geometry_plan.h"
#include "server/transform/transform_parameter_reader.h"
#include "server/transform/view_planner.h"

namespace pinfeed {

// The size, channels and element type of images before or after a transform.
struct ImageForm {
  int32_t width = 0;  // 0, like height: differs between samples, or is not known yet
  int32_t height = 0;
  size_t channels = 3;  // 1 or 3
  DType dtype = DType::kUint8;

  // Of a tensor of such images. Precondition: their size is known.
  std::vector<int64_t> Shape(ImageLayout layout) const {
    const auto c = static_cast<int64_t>(channels);
    if (layout == ImageLayout::kChw) return {c, height, width};
    return {height, width, c};
  }
};

// How the client's GPU kernel can apply a transform in place of the daemon.
enum class GpuForm {
  kNone,    // it cannot: the daemon applies the transform
  kMirror,  // as a horizontal flip, requested by one mark byte per sample
  kTable,   // as a lookup table from each of the 256 pixel values to its result
};

// A lookup table: what each of the 256 pixel values of a channel becomes.
struct PixelValues {
  DType dtype = DType::kUint8;
  std::array<float, 256> values;
};

// Purpose: one transform with its parameters. A transform that cuts, resizes, flips or grays the image
// implements Plan. One that maps each pixel value by itself implements Recolour. Threads: immutable.
class Transform {
 public:
  using Report = std::function<void(const std::string& fault)>;

  Transform() = default;
  virtual ~Transform() = default;
  Transform(const Transform&) = delete;
  Transform& operator=(const Transform&) = delete;

  virtual GpuForm gpu_form() const { return GpuForm::kNone; }
  // Whether it works on stored uint8 pixels only, so that it must come before any transform that changes the
  // element type.
  virtual bool NeedsBytes() const { return gpu_form() == GpuForm::kNone; }
  // Whether it moves pixels, so that a mask must get the same change.
  virtual bool MovesPixels() const { return gpu_form() != GpuForm::kTable; }

  // Whether it may do something else to the same image in another epoch or feed.
  virtual bool Varies() const { return false; }

  // Whether it pads with a colour other than zero, which has no meaning in a mask.
  virtual bool FillsWithColour() const { return false; }

  // Updates `form` from the transform's input to its output. Calls `report` with each reason why the
  // transform cannot be applied to such images.
  virtual void Follow(ImageForm& form, const Report& report) const = 0;
  // Appends the transform to the plan of one image. kInvalidArgument if the image is too small for it,
  // kResourceExhausted if a resize would exceed kMaxImagePixels.
  virtual Status Plan(GeometryPlanner& /*planner*/, SampleRandom /*random*/) const { return OkStatus(); }
  // Adds the transform to the view of resident images. False: the client's kernel cannot do the same as Plan.
  virtual bool Show(ViewPlanner& /*view*/) const { return gpu_form() == GpuForm::kTable; }
  // Applies the transform to a channel's table, and sets the table's element type. Computes in float32 and
  // rounds to that type (RoundTo). The table is applied behind all Plans, also of later transforms, and is
  // the same for all samples. So one that keeps the element type, which a later Resize accepts, must commute
  // with Plan, and none draws random numbers.
  virtual void Recolour(size_t /*channel*/, PixelValues& /*pixels*/) const {}
};

// Rounds `value` to what an element of the type can hold. Floating-point types round to nearest, ties to
// even. uint8 clamps to [0, 255] and truncates.
float RoundTo(DType dtype, float value);

// Creates a transform from its parameters. Reports bad ones to `parameters`; the result must then not be
// used.
using ParseTransform = std::unique_ptr<const Transform> (*)(TransformParameterReader& parameters);

// Returns the parser of the transform `name`, or null if there is no such transform.
ParseTransform FindTransform(std::string_view name);

}  // namespace pinfeed
