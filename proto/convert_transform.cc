// SPDX-License-Identifier: Apache-2.0
#include "proto/convert_transform.h"

#include <optional>
#include <utility>

namespace pinfeed {
namespace {

// In place of what could not be read: nothing is wrong with it, and the places of the others stay.
Transform Nothing() {
  return ToDtype{};
}

struct Size {
  uint32_t height = 0;
  uint32_t width = 0;
};

// One value (a square, or with `shorter_side` the length of the shorter side), or height and width.
std::optional<Size> SizeFromProto(const google::protobuf::RepeatedField<uint32_t>& size, bool shorter_side,
                                  const std::string& at, Faults& faults) {
  if (size.size() == 2) return Size{size.Get(0), size.Get(1)};
  if (size.size() == 1) return Size{shorter_side ? 0 : size.Get(0), size.Get(0)};
  faults.Add(at + ".size", "has " + std::to_string(size.size()) + " values; give one, or height and width");
  return std::nullopt;
}

// Two values, or none for the defaults that *min and *max hold.
bool RangeFromProto(const google::protobuf::RepeatedField<double>& range, const std::string& field,
                    double* min, double* max, Faults& faults) {
  if (range.size() == 2) {
    *min = range.Get(0);
    *max = range.Get(1);
  } else if (!range.empty()) {
    faults.Add(field, "has " + std::to_string(range.size()) + " values; give the least and the greatest");
    return false;
  }
  return true;
}

Transform ResizeFromProto(const v1::Resize& in, const std::string& at, Faults& faults) {
  if (in.size().empty() && in.max_size() != 0) return Resize{0, 0, in.max_size()};
  const std::optional<Size> size = SizeFromProto(in.size(), true, at, faults);
  if (!size) return Nothing();
  if (in.size_size() == 2 && size->height == 0) {  // a height of 0 means another thing in a Resize
    faults.Add(at + ".size", "0 is not within 1 to " + std::to_string(kMaxImageSide));
    return Nothing();
  }
  return Resize{size->height, size->width, in.max_size()};
}

Transform CropFromProto(const v1::RandomResizedCrop& in, const std::string& at, Faults& faults) {
  RandomResizedCrop out;
  const std::optional<Size> size = SizeFromProto(in.size(), false, at, faults);
  const bool scale = RangeFromProto(in.scale(), at + ".scale", &out.scale_min, &out.scale_max, faults);
  const bool ratio = RangeFromProto(in.ratio(), at + ".ratio", &out.ratio_min, &out.ratio_max, faults);
  if (!size) return Nothing();
  out.height = size->height;
  out.width = size->width;
  return scale && ratio ? Transform(out) : Nothing();
}

Transform ToDtypeFromProto(const v1::ToDtype& in, const std::string& at, Faults& faults) {
  const Result<DType> dtype = DTypeFromName(in.dtype());
  if (dtype.ok()) return ToDtype{*dtype, in.scale()};
  faults.Add(at + ".dtype", "is none of uint8, float32, float16, bfloat16");
  return Nothing();
}

}  // namespace

Transform TransformFromProto(const v1::Transform& in, const std::string& at, Faults& faults) {
  switch (in.op_case()) {
    case v1::Transform::kResize:
      return ResizeFromProto(in.resize(), at + " resize", faults);
    case v1::Transform::kCenterCrop: {
      const auto size = SizeFromProto(in.center_crop().size(), false, at + " center_crop", faults);
      return size ? Transform(CenterCrop{size->height, size->width}) : Nothing();
    }
    case v1::Transform::kRandomResizedCrop:
      return CropFromProto(in.random_resized_crop(), at + " random_resized_crop", faults);
    case v1::Transform::kRandomHorizontalFlip: {
      RandomHorizontalFlip out;
      if (in.random_horizontal_flip().has_p()) out.p = in.random_horizontal_flip().p();
      return out;
    }
    case v1::Transform::kNormalize: {
      const v1::Normalize& normalize = in.normalize();
      return Normalize{{normalize.mean().begin(), normalize.mean().end()},
                       {normalize.std().begin(), normalize.std().end()}};
    }
    case v1::Transform::kToDtype:
      return ToDtypeFromProto(in.to_dtype(), at + " to_dtype", faults);
    case v1::Transform::OP_NOT_SET:
      break;
  }
  faults.Add(at, "names no operation that this daemon knows");
  return Nothing();
}

}  // namespace pinfeed
