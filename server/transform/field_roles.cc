// SPDX-License-Identifier: Apache-2.0
#include "server/transform/field_roles.h"

#include <algorithm>

#include "common/base/join.h"

namespace pinfeed {
namespace {

bool Names(const std::vector<std::string>& names, const Field& field) {
  return std::find(names.begin(), names.end(), field.spec.name) != names.end();
}

std::string Quoted(const Field& field) {
  return "'" + field.spec.name + "'";
}

std::string NamesOf(const std::vector<Field>& fields) {
  return JoinTexts(fields, ", ", Quoted);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return "[" + JoinTexts(shape, ", ", [](int64_t side) { return std::to_string(side); }) + "]";
}

std::string WithShape(const Field& field) {
  return "field " + Quoted(field) + " of shape " + ShapeText(field.spec.shape);
}

bool IsChannels(int64_t dimension) {
  return dimension == 1 || dimension == 3;
}

bool LooksLikeImage(const Field& field) {
  const std::vector<int64_t>& shape = field.spec.shape;
  return field.kind == FieldKind::kTensor && field.spec.dtype == DType::kUint8 && shape.size() == 3 &&
         (IsChannels(shape.front()) || IsChannels(shape.back()));
}

Result<TensorImage> AsImage(const Field& field) {
  const std::vector<int64_t>& shape = field.spec.shape;
  const bool first = IsChannels(shape.front());
  if (first && IsChannels(shape.back())) {
    return InvalidArgument(WithShape(field) +
                           " may be channels first or channels last; both ends are 1 or 3");
  }
  const int64_t height = shape[first ? 1 : 0];
  const int64_t width = shape[first ? 2 : 1];
  if (height < 1 || width < 1 || height > kMaxImagePixels / width) {
    return InvalidArgument(WithShape(field) + " is no image: it must have between 1 and " +
                           std::to_string(kMaxImagePixels) + " pixels");
  }
  return TensorImage{{static_cast<int32_t>(width), static_cast<int32_t>(height)},
                     static_cast<size_t>(first ? shape.front() : shape.back()),
                     first ? ImageLayout::kChw : ImageLayout::kHwc};
}

// Purpose: assigns the roles of one dataset's fields. Borrows all constructor arguments.
class RoleFinder {
 public:
  RoleFinder(const std::vector<Field>& fields, const FeedSpec& spec, const TransformChain& transforms,
             Faults& faults)
      : fields_(fields), spec_(spec), transforms_(transforms), faults_(faults) {}

  FieldRoles Find() {
    CheckNames("masks", spec_.masks);
    CheckNames("fields_unchanged", spec_.fields_unchanged);
    FieldRoles roles;
    roles.image = FindImage();
    if (roles.image && fields_[*roles.image].kind == FieldKind::kTensor) {
      if (auto tensor = AsImage(fields_[*roles.image]); tensor.ok()) {
        roles.tensor = tensor.value();
      } else {
        faults_.Add("transforms", tensor.status().message());
      }
    }
    const std::optional<std::string> moves = transforms_.FirstThatMovesPixels();
    if (!moves || !roles.image) return roles;
    moving_transform_ = *moves;
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (i == roles.image || fields_[i].kind != FieldKind::kTensor) continue;
      if (roles.tensor) {
        CheckField(i, *roles.image, roles.tensor->size, roles.masks);
      } else if (fields_[*roles.image].kind == FieldKind::kEncodedImage && Names(spec_.masks, fields_[i])) {
        faults_.Add("masks",
                    WithShape(fields_[i]) +
                        " cannot follow images whose sizes vary; masks are for images of one size, such as "
                        "those of the npy format");
      }
    }
    const std::optional<std::string> fills = transforms_.FirstThatFillsWithColour();
    if (fills && !roles.masks.empty())
      faults_.Add(*fills, "fill must be 0 when there are masks, to which zeros are added");
    return roles;
  }

 private:
  void CheckNames(const std::string& list, const std::vector<std::string>& names) {
    std::string unknown;
    for (const std::string& name : names) {
      const auto found = std::find_if(fields_.begin(), fields_.end(),
                                      [&](const Field& field) { return field.spec.name == name; });
      if (found == fields_.end()) {
        unknown += (unknown.empty() ? "'" : ", '") + name + "'";
      } else if (found->kind == FieldKind::kEncodedImage) {
        faults_.Add(list, "field '" + name +
                              "' is an encoded image, which cannot be listed here; remove it from the list");
      } else if (found->kind == FieldKind::kRagged && list == "masks") {
        faults_.Add("masks",
                    "field '" + name +
                        "' holds texts or rows whose number differs from sample to sample, so it has no "
                        "pixels that could "
                        "follow the image. Masks are arrays beside an image array (format npy); masks in "
                        "files of their own "
                        "are loaded by a Dataset of yours with pinfeed.DataLoader");
      }
    }
    if (!unknown.empty())
      faults_.Add(list, "the dataset has no field " + unknown + "; its fields are " + NamesOf(fields_));
  }

  bool IsNamed(const Field& field) const {
    return Names(spec_.masks, field) || Names(spec_.fields_unchanged, field);
  }

  // Returns the encoded field. Without one, and with transforms, returns a tensor that looks like an image.
  std::optional<size_t> FindImage() {
    std::vector<size_t> found;
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (fields_[i].kind == FieldKind::kEncodedImage) found.push_back(i);
    }
    const bool encoded = !found.empty();
    if (!encoded && transforms_.empty()) return std::nullopt;
    for (size_t i = 0; !encoded && i < fields_.size(); ++i) {
      if (!LooksLikeImage(fields_[i]) || IsNamed(fields_[i])) continue;
      if (fields_[i].spec.name == "image") return i;
      found.push_back(i);
    }
    if (found.size() == 1) return found.front();
    if (found.empty()) {
      const bool named = !spec_.masks.empty() || !spec_.fields_unchanged.empty();
      faults_.Add(
          "transforms",
          "the dataset has no image for them: no encoded one, and no uint8 field of shape "
          "[channels, height, width] or [height, width, channels] with 1 or 3 channels" +
              std::string(named ? " that is not named in masks or fields_unchanged" : "") +
              ". A table names image files in its column file_name, or in the one that the dataset's image "
              "option "
              "names; its fields are " +
              NamesOf(fields_));
      return std::nullopt;
    }
    const std::string names = JoinTexts(found, ", ", [&](size_t i) { return Quoted(fields_[i]); });
    faults_.Add("transforms", "the dataset has several images (" + names + "); one of them must be " +
                                  (encoded ? "the only one"
                                           : "the image that they are for: name the others in masks or "
                                             "fields_unchanged"));
    return std::nullopt;
  }

  // Checks a field other than the image, when a transform moves pixels. Adds it to `masks` if it is one.
  void CheckField(size_t index, size_t image, ImageSize size, std::vector<MaskField>& masks) {
    const Field& field = fields_[index];
    const bool mask = Names(spec_.masks, field);
    if (!mask && Names(spec_.fields_unchanged, field)) return;
    const std::vector<int64_t>& shape = field.spec.shape;
    std::vector<size_t> axes;
    for (size_t axis = 0; axis + 1 < shape.size(); ++axis) {
      if (shape[axis] == size.height && shape[axis + 1] == size.width) axes.push_back(axis);
    }
    const std::string sides = std::to_string(size.height) + " and " + std::to_string(size.width);
    if (mask && axes.empty()) {
      faults_.Add("masks", WithShape(field) + " does not fit the image " + Quoted(fields_[image]) +
                               ": it needs the image's height and width, " + sides +
                               ", as neighbouring dimensions");
    } else if (mask && axes.size() > 1) {
      faults_.Add("masks", WithShape(field) + " has the image's height and width, " + sides +
                               ", in more than one place; reshape it so that it has them once");
    } else if (mask) {
      masks.push_back(LayoutOf(index, axes.front()));
    } else if (!axes.empty()) {
      faults_.Add(moving_transform_,
                  WithShape(field) + " has the height and width of the image " + Quoted(fields_[image]) +
                      ", but would not follow it: name it in masks (it gets the same geometry, by nearest "
                      "resampling), or in fields_unchanged to keep it as it is");
    }
  }

  MaskField LayoutOf(size_t index, size_t height_axis) const {
    const TensorSpec& spec = fields_[index].spec;
    MaskField mask{index, height_axis, 1, DTypeSize(spec.dtype)};
    for (size_t axis = 0; axis < height_axis; ++axis) mask.planes *= static_cast<size_t>(spec.shape[axis]);
    for (size_t axis = height_axis + 2; axis < spec.shape.size(); ++axis)
      mask.pixel_bytes *= static_cast<size_t>(spec.shape[axis]);
    return mask;
  }

  const std::vector<Field>& fields_;
  const FeedSpec& spec_;
  const TransformChain& transforms_;
  Faults& faults_;
  std::string moving_transform_;  // the first transform that moves pixels, for faults
};

}  // namespace

FieldRoles AssignFieldRoles(const std::vector<Field>& fields, const FeedSpec& spec,
                            const TransformChain& transforms, Faults& faults) {
  return RoleFinder(fields, spec, transforms, faults).Find();
}

Result<ImageView> ToRgb(const TensorImage& image, const uint8_t* tensor, ImageBuffer& buffer) {
  const size_t stride = 3 * static_cast<size_t>(image.size.width);
  if (image.channels == 3 && image.layout == ImageLayout::kHwc) {
    return ImageView{tensor, image.size.width, image.size.height, stride};
  }
  ASSIGN_OR_RETURN(uint8_t* const out, buffer.Reserve(image.size.width, image.size.height));
  const size_t pixels = static_cast<size_t>(image.size.width) * static_cast<size_t>(image.size.height);
  const size_t plane = image.channels == 1 ? 0 : pixels;
  for (size_t i = 0; i < pixels; ++i) {
    out[3 * i] = tensor[i];
    out[3 * i + 1] = tensor[plane + i];
    out[3 * i + 2] = tensor[2 * plane + i];
  }
  return ImageView{out, image.size.width, image.size.height, stride};
}

}  // namespace pinfeed
