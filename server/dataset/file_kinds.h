// SPDX-License-Identifier: Apache-2.0
// What the name of a file tells of what it holds. In: a file's or directory's name. Out: whether that is an
// image, or data of a kind that is not read and what to do about it.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace pinfeed {

inline constexpr std::array<std::string_view, 3> kImageExtensions = {".jpg", ".jpeg", ".png"};
// What torchvision takes besides. Passing over them would shift every later sample without a word.
inline constexpr std::array<std::string_view, 6> kUnsupportedImageExtensions = {".ppm", ".bmp",  ".pgm",
                                                                                ".tif", ".tiff", ".webp"};

// Whether the name ends in one of them, in capitals or not.
bool HasExtension(std::string_view name, std::span<const std::string_view> extensions);
// With an extension of either kind.
bool IsNamedAsImage(std::string_view name);

// What to do with data of a kind that is not read, such as tables and archives. Empty: the kind is not known.
std::string_view AdviceFor(std::string_view name);

// The part of a dataset that such a directory holds, in any case of letters: train, val, test, ...
bool IsSplitName(std::string_view name);
// A directory of images, or of what belongs to each image, as segmentation datasets have them.
bool IsImagesName(std::string_view name);
bool IsMasksName(std::string_view name);
// A table of the images in its directory, as Hugging Face names it.
bool IsMetadataName(std::string_view name);
// Text without control characters, quotes or backslashes.
bool IsFieldName(std::string_view name);

// `missing` (kNotFound of `path`) with what to give instead where the path has a pattern or a "~" in it,
// which shells expand and the daemon does not; any other status as it is.
Status ExplainMissing(const Status& missing, std::string_view path);

}  // namespace pinfeed
