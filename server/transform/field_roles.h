// SPDX-License-Identifier: Apache-2.0
// Decides what a feed does with each field of its dataset. In: the fields and the spec. Out: the image that
// the transforms change, and the masks that get the same geometry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/faults.h"
#include "common/spec/feed_spec.h"
#include "server/dataset/dataset.h"
#include "server/image/image.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

// The layout of a tensor field that is used as an image.
struct TensorImage {
  ImageSize size;
  size_t channels = 0;
  ImageLayout layout = ImageLayout::kHwc;
};

// The pixels of such a tensor as RGB, one channel three times; in `buffer` unless they are that already. They
// are `tensor`, which has kRowSlack bytes more than the image.
Result<ImageView> ToRgb(const TensorImage& image, const uint8_t* tensor, ImageBuffer& buffer);

// A field of shape [..., height, width, ...] that follows the image's geometry.
struct MaskField {
  size_t field = 0;        // its index in the dataset's fields
  size_t height_axis = 0;  // the axis of the height; the next axis is the width
  size_t planes = 0;       // product of the dimensions before the height
  size_t pixel_bytes = 0;  // bytes of all dimensions after the width
};

struct FieldRoles {
  std::optional<size_t> image;        // the field that is decoded and transformed
  std::optional<TensorImage> tensor;  // the image's layout, if the image is a tensor field
  std::vector<MaskField> masks;       // empty when no transform moves pixels

  // Of the image before the transforms.
  ImageForm form() const {
    if (!tensor) return {};
    return {tensor->size.width, tensor->size.height, tensor->channels, DType::kUint8};
  }
};

// Assigns the roles. The result is valid only if no fault was added. If a
// transform moves pixels, each field with the image's height and width must be named in spec.masks or
// spec.fields_unchanged. Otherwise image and mask would silently stop matching.
// `transforms` is made of spec.transforms. Precondition: CheckFeedSpec found no fault.
FieldRoles AssignFieldRoles(const std::vector<Field>& fields, const FeedSpec& spec,
                            const TransformChain& transforms, Faults& faults);

}  // namespace pinfeed
