// SPDX-License-Identifier: Apache-2.0
#include "common/spec/feed_spec_check.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <variant>

#include "common/wire/shared_page.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxChannels = 64;

bool IsPrintable(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

// Purpose: goes through the transforms of one spec, in order. Borrows the faults.
class TransformCheck {
 public:
  explicit TransformCheck(Faults& faults) : faults_(faults) {}

  void Check(const Transform& transform, size_t index) {
    at_ = "transforms[" + std::to_string(index) + "] " + std::string(TransformName(transform));
    std::visit([this](const auto& op) { Apply(op); }, transform);
  }

 private:
  void Fault(const std::string& below, const std::string& reason) { faults_.Add(at_ + below, reason); }

  bool CheckSide(const char* field, uint32_t side) {
    if (side >= 1 && side <= kMaxImageSide) return true;
    Fault(field, std::to_string(side) + " is not within 1 to " + std::to_string(kMaxImageSide));
    return false;
  }
  void CheckSize(uint32_t height, uint32_t width) {
    bool sides = CheckSide(".size", height);
    if (width != height) sides = CheckSide(".size", width) && sides;
    if (!sides || int64_t{height} * width <= kMaxImagePixels) return;
    Fault(".size", std::to_string(height) + " x " + std::to_string(width) + " is over the limit of " +
                       std::to_string(kMaxImagePixels) + " pixels");
  }
  bool CheckRange(const char* field, double least, double greatest) {
    if (std::isfinite(least) && std::isfinite(greatest) && least > 0 && least <= greatest) return true;
    Fault(field, "must be two finite numbers, 0 < least <= greatest");
    return false;
  }
  void CheckGeometry() {
    if (pointwise_)
      Fault("", "comes after normalize or to_dtype, but works on uint8 pixels; move it before them");
  }
  void CheckChannels(const char* field, const std::vector<double>& values) {
    if (values.empty() || values.size() > kMaxChannels)
      Fault(field, "has " + std::to_string(values.size()) + " values; give one, or one a channel");
    if (std::any_of(values.begin(), values.end(), [](double value) { return !std::isfinite(value); }))
      Fault(field, "holds a value that is not finite");
  }

  void Apply(const Resize& op) {
    CheckGeometry();
    if (op.max_size != 0) CheckSide(".max_size", op.max_size);
    if (op.height != 0) {
      CheckSize(op.height, op.width);
      if (op.max_size != 0)
        Fault(".max_size", "goes with the length of the shorter side, not with height and width");
      return;
    }
    if (op.max_size != 0 && op.width == 0) return;
    if (CheckSide(".size", op.width) && op.max_size != 0 && op.max_size <= op.width) {
      Fault(".max_size", std::to_string(op.max_size) + " is not above size, " + std::to_string(op.width));
    }
  }
  void Apply(const CenterCrop& op) {
    CheckGeometry();
    CheckSize(op.height, op.width);
  }
  void Apply(const RandomResizedCrop& op) {
    CheckGeometry();
    CheckSize(op.height, op.width);
    if (CheckRange(".scale", op.scale_min, op.scale_max) && op.scale_max > 1)
      Fault(".scale", Number(op.scale_max) + " is above 1, the whole area");
    CheckRange(".ratio", op.ratio_min, op.ratio_max);
  }
  void Apply(const RandomHorizontalFlip& op) {
    if (!(op.p >= 0 && op.p <= 1)) Fault(".p", Number(op.p) + " is not within 0 to 1");
  }
  void Apply(const Normalize& op) {
    pointwise_ = true;
    if (dtype_ == DType::kUint8) dtype_ = DType::kFloat32;
    CheckChannels(".mean", op.mean);
    CheckChannels(".std", op.std);
    for (const double std : op.std) {
      // In float32, where it divides.
      if (!std::isfinite(std) || static_cast<float>(std) > 0) continue;
      Fault(".std", "holds " + Number(std) + "; it must be above 0, also as float32");
      break;
    }
  }
  void Apply(const ToDtype& op) {
    if (op.dtype != DType::kUint8 && op.dtype != DType::kFloat32 && op.dtype != DType::kFloat16 &&
        op.dtype != DType::kBfloat16) {
      return Fault(".dtype", "is none of uint8, float32, float16, bfloat16");
    }
    if (op.dtype != DType::kUint8 || dtype_ != DType::kUint8) pointwise_ = true;
    dtype_ = op.dtype;
  }

  Faults& faults_;
  std::string at_;
  DType dtype_ = DType::kUint8;
  bool pointwise_ = false;
};

void CheckDataset(const DatasetSpec& spec, Faults& faults) {
  CheckText(spec.name, kMaxNameBytes, "dataset.name", faults);
  if (spec.name.empty() && spec.path.empty()) faults.Add("dataset", "needs a name or a path");
  if (!spec.name.empty() && !spec.path.empty())
    faults.Add("dataset", "has both a name and a path; give one of them");
  if (spec.path.size() >= PATH_MAX) {
    faults.Add("dataset.path",
               "has " + std::to_string(spec.path.size()) + " bytes, more than a path can have");
  } else if (spec.path.find('\0') != std::string::npos) {
    faults.Add("dataset.path", "holds a NUL byte");
  } else if (!spec.path.empty() && spec.path.front() != '/') {
    faults.Add("dataset.path", "is not absolute; the daemon does not know the client's working directory");
  }
  if (spec.format.empty()) return;  // what is to be known of the rest then depends on what the path holds
  if (std::find(kDatasetFormats.begin(), kDatasetFormats.end(), spec.format) == kDatasetFormats.end()) {
    CheckText(spec.format, kMaxNameBytes, "dataset.format", faults);
    if (IsPrintable(spec.format) && spec.format.size() <= kMaxNameBytes)
      faults.Add("dataset.format", "'" + spec.format + "' is none of image_folder, npy, tokens");
  }
  if (spec.format != "tokens") {
    if (spec.sequence_length != 0) faults.Add("dataset.sequence_length", "is for the format tokens only");
    if (spec.stride != 0) faults.Add("dataset.stride", "is for the format tokens only");
    if (spec.token_dtype) faults.Add("dataset.token_dtype", "is for the format tokens only");
  } else if (spec.name.empty() && spec.sequence_length == 0) {  // with a name the configuration may give it
    faults.Add("dataset.sequence_length", "must be at least 1 with the format tokens");
  }
}

void CheckSharing(const FeedSpec& spec, Faults& faults) {
  CheckText(spec.group, kMaxGroupBytes, "group", faults);
  if (spec.sharing == Sharing::kExclusive) {
    if (!spec.group.empty()) faults.Add("group", "is for the sharings broadcast and queue only");
    if (spec.group_size > 1) faults.Add("group_size", "is for the sharings broadcast and queue only");
  } else if (spec.group.empty()) {
    faults.Add("group", "must name the group that shares the feed");
  }
}

bool Holds(const std::vector<std::string>& names, size_t count, const std::string& name) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(count);
  return std::find(names.begin(), end, name) != end;
}

// Whether the dataset has them is for who knows its fields.
void CheckFieldNames(const std::string& list, const std::vector<std::string>& names, Faults& faults) {
  if (names.size() > kMaxNamedFields) {
    return faults.Add(list, "has " + std::to_string(names.size()) + " names, at most " +
                                std::to_string(kMaxNamedFields) + " are possible");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string at = list + "[" + std::to_string(i) + "]";
    CheckText(names[i], kMaxNameBytes, at, faults);
    if (names[i].empty()) {
      faults.Add(at, "is empty; it must be the name of a field");
    } else if (Holds(names, i, names[i])) {
      faults.Add(at, "is listed twice");
    }
  }
}

void CheckFields(const FeedSpec& spec, Faults& faults) {
  CheckFieldNames("fields", spec.fields, faults);
  CheckFieldNames("masks", spec.masks, faults);
  CheckFieldNames("fields_unchanged", spec.fields_unchanged, faults);
  if (spec.masks.size() > kMaxNamedFields) return;
  for (size_t i = 0; i < spec.fields_unchanged.size() && i < kMaxNamedFields; ++i) {
    if (Holds(spec.masks, spec.masks.size(), spec.fields_unchanged[i]))
      faults.Add("fields_unchanged[" + std::to_string(i) + "]",
                 "is in masks too; a field either follows the image or stays as it is");
  }
}

}  // namespace

void CheckText(const std::string& text, size_t limit, const std::string& field, Faults& faults) {
  if (text.size() > limit) {
    faults.Add(field, "has " + std::to_string(text.size()) + " bytes, at most " + std::to_string(limit) +
                          " are possible");
  } else if (!IsPrintable(text)) {
    faults.Add(field, "holds a control character");
  }
}

std::string_view TransformName(const Transform& transform) {
  static constexpr std::string_view kNames[] = {
      "resize", "center_crop", "random_resized_crop", "random_horizontal_flip", "normalize", "to_dtype"};
  static_assert(std::size(kNames) == std::variant_size_v<Transform>);
  return kNames[transform.index()];
}

void CheckFeedSpec(const FeedSpec& spec, Faults& faults) {
  CheckDataset(spec.dataset, faults);
  if (spec.batch_size == 0) faults.Add("batch_size", "must be at least 1");
  if (spec.world_size == 0) faults.Add("world_size", "must be at least 1");
  if (spec.rank >= spec.world_size && spec.world_size != 0) {
    faults.Add("rank", std::to_string(spec.rank) + " is not below the world_size of " +
                           std::to_string(spec.world_size));
  }
  TransformCheck transforms(faults);
  for (size_t i = 0; i < spec.transforms.size(); ++i) transforms.Check(spec.transforms[i], i);
  CheckFields(spec, faults);
  if (spec.slots != 0 && (spec.slots < kMinSlots || spec.slots > kMaxSlots)) {
    faults.Add("slots", std::to_string(spec.slots) + " is not within " + std::to_string(kMinSlots) + " to " +
                            std::to_string(kMaxSlots));
  }
  CheckSharing(spec, faults);
}

}  // namespace pinfeed
