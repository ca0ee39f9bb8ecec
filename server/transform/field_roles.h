// SPDX-License-Identifier: Apache-2.0
// What a feed does with each field of its dataset. In: the fields and the spec. Out: the image that the
// transforms change, and the masks that follow its geometry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/feed_spec.h"
#include "server/dataset/dataset.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

// How the pixels of a tensor field lie.
struct TensorImage {
  ImageSize size;
  size_t channels = 0;
  ImageLayout layout = ImageLayout::kHwc;
};

// A field of shape [..., height, width, ...]: `planes` times height rows of width pixels of `pixel_bytes`.
struct MaskField {
  size_t field = 0;
  size_t height_axis = 0;  // the width's is the next one
  size_t planes = 0;
  size_t pixel_bytes = 0;
};

struct FieldRoles {
  std::optional<size_t> image;        // the field that decoding and transforms work on
  std::optional<TensorImage> tensor;  // of an image that is a tensor field
  std::vector<MaskField> masks;       // empty when no transform moves pixels
};

// Assigns the roles. Appends one line a fault to `faults`; the roles count only if there was none. A field
// that has the image's height and width while a transform moves pixels must be named in spec.masks or
// spec.fields_unchanged: else image and mask would not match any more, and nobody would see it.
// `transforms` are the spec's. Precondition: CheckFeedSpec found no fault.
FieldRoles AssignFieldRoles(const std::vector<Field>& fields, const FeedSpec& spec,
                            const TransformChain& transforms, std::vector<std::string>& faults);

}  // namespace pinfeed
