// SPDX-License-Identifier: Apache-2.0
#include "proto/convert_transform.h"

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/convert.h"

namespace pinfeed {
namespace {

// A size given as one value (a square, or with `shorter_side` the shorter side) or as height and width.
std::pair<uint32_t, uint32_t> SizeFromProto(const google::protobuf::RepeatedField<uint32_t>& size,
                                            bool shorter_side, const std::string& field, Faults& faults) {
  if (size.size() != 1 && size.size() != 2) {
    faults.Add(field + ".size",
               "has " + std::to_string(size.size()) + " values; give one, or height and width");
    return {};
  }
  for (const uint32_t side : size) {
    if (side == 0 || side > kMaxImageSide) {
      faults.Add(field + ".size",
                 std::to_string(side) + " is not within 1 to " + std::to_string(kMaxImageSide));
      return {};
    }
  }
  if (size.size() == 2) return {size.Get(0), size.Get(1)};
  return {shorter_side ? 0 : size.Get(0), size.Get(0)};
}

Resize ResizeFromProto(const v1::Resize& in, const std::string& field, Faults& faults) {
  Resize out;
  out.max_size = in.max_size();
  if (out.max_size > kMaxImageSide) {
    faults.Add(field + ".max_size",
               std::to_string(out.max_size) + " is not within 1 to " + std::to_string(kMaxImageSide));
  }
  if (in.size().empty() && out.max_size != 0) return out;
  std::tie(out.height, out.width) = SizeFromProto(in.size(), true, field, faults);
  if (out.max_size == 0) return out;
  if (out.height != 0) {
    faults.Add(field + ".max_size", "goes with the length of the shorter side, not with height and width");
  } else if (out.max_size <= out.width) {
    faults.Add(field + ".max_size",
               std::to_string(out.max_size) + " is not above size, " + std::to_string(out.width));
  }
  return out;
}

// Two values 0 < min <= max, or none for the defaults that *min and *max hold.
void RangeFromProto(const google::protobuf::RepeatedField<double>& range, const std::string& field,
                    double* min, double* max, Faults& faults) {
  if (range.empty()) return;
  if (range.size() != 2) {
    faults.Add(field, "has " + std::to_string(range.size()) + " values; give the least and the greatest");
  } else if (!std::isfinite(range.Get(0)) || !std::isfinite(range.Get(1)) || range.Get(0) <= 0 ||
             range.Get(0) > range.Get(1)) {
    faults.Add(field, "must be two finite numbers, 0 < least <= greatest");
  } else {
    *min = range.Get(0);
    *max = range.Get(1);
  }
}

std::vector<double> ChannelsFromProto(const google::protobuf::RepeatedField<double>& values,
                                      const std::string& field, bool zero_allowed, Faults& faults) {
  if (values.empty() || values.size() > kMaxChannels) {
    faults.Add(field, "has " + std::to_string(values.size()) + " values; give one, or one a channel");
    return {};
  }
  for (const double value : values) {
    if (!std::isfinite(value)) {
      faults.Add(field, "holds a value that is not finite");
      return {};
    }
    if (value == 0 && !zero_allowed) {
      faults.Add(field, "holds a zero, by which nothing can be divided");
      return {};
    }
  }
  return {values.begin(), values.end()};
}

}  // namespace

std::optional<Transform> TransformFromProto(const v1::Transform& in, const std::string& at, Faults& faults) {
  switch (in.op_case()) {
    case v1::Transform::kResize:
      return ResizeFromProto(in.resize(), at + " resize", faults);
    case v1::Transform::kCenterCrop: {
      const auto [height, width] = SizeFromProto(in.center_crop().size(), false, at + " center_crop", faults);
      return CenterCrop{height, width};
    }
    case v1::Transform::kRandomResizedCrop: {
      RandomResizedCrop out;
      const std::string field = at + " random_resized_crop";
      std::tie(out.height, out.width) = SizeFromProto(in.random_resized_crop().size(), false, field, faults);
      RangeFromProto(in.random_resized_crop().scale(), field + ".scale", &out.scale_min, &out.scale_max,
                     faults);
      RangeFromProto(in.random_resized_crop().ratio(), field + ".ratio", &out.ratio_min, &out.ratio_max,
                     faults);
      return out;
    }
    case v1::Transform::kRandomHorizontalFlip: {
      RandomHorizontalFlip out;
      if (in.random_horizontal_flip().has_p()) out.p = in.random_horizontal_flip().p();
      if (!(out.p >= 0 && out.p <= 1)) faults.Add(at + " random_horizontal_flip.p", "is not within 0 to 1");
      return out;
    }
    case v1::Transform::kNormalize: {
      const std::string field = at + " normalize";
      Normalize out;
      out.mean = ChannelsFromProto(in.normalize().mean(), field + ".mean", true, faults);
      out.std = ChannelsFromProto(in.normalize().std(), field + ".std", false, faults);
      return out;
    }
    case v1::Transform::kToDtype: {
      const std::string field = at + " to_dtype.dtype";
      ToDtype out;
      out.scale = in.to_dtype().scale();
      const Result<DType> dtype = DTypeFromName(in.to_dtype().dtype());
      if (!dtype.ok() || (*dtype != DType::kUint8 && *dtype != DType::kFloat32 && *dtype != DType::kFloat16 &&
                          *dtype != DType::kBfloat16)) {
        faults.Add(field, "is none of uint8, float32, float16, bfloat16");
      } else {
        out.dtype = *dtype;
      }
      return out;
    }
    case v1::Transform::OP_NOT_SET:
      break;
  }
  faults.Add(at, "names no operation that this daemon knows");
  return std::nullopt;
}

}  // namespace pinfeed
