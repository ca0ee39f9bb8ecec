// SPDX-License-Identifier: Apache-2.0
// Classifies files by their names. In: the name of a file or directory. Out: whether it is an image, or what
// to do with data of an unsupported kind.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "common/base/status.h"

namespace pinfeed {

inline constexpr std::array<std::string_view, 4> kImageExtensions = {".jpg", ".jpeg", ".png", ".webp"};
// Other extensions that torchvision accepts. They are errors: ignoring such a file would silently shift every
// later sample.
inline constexpr std::array<std::string_view, 5> kUnsupportedImageExtensions = {".ppm", ".bmp", ".pgm",
                                                                                ".tif", ".tiff"};

inline constexpr std::array<std::string_view, 1> kShardExtensions = {".tar"};
inline constexpr std::array<std::string_view, 1> kNpyExtensions = {".npy"};

// Whether the name ends in one of the extensions, ignoring case.
bool HasExtension(std::string_view name, std::span<const std::string_view> extensions);
// Whether the name has an image's extension, supported or not.
bool IsNamedAsImage(std::string_view name);
// What macOS stores beside a file: ._NAME.
bool IsOfMacos(std::string_view name);

// Whether the name has the extension of a table that can be opened.
bool IsNamedAsTable(std::string_view name);

// Whether the name has the extension of a table that cannot be opened.
bool IsNamedAsOtherTable(std::string_view name);

// What the user can do with data of an unsupported kind, such as an archive. Empty if the kind is unknown.
std::string_view AdviceFor(std::string_view name);

// Whether a directory of this name holds a split of a dataset: train, val2017, test_images, ... Ignores case.
bool IsSplitName(std::string_view name);
// Whether a directory of this name holds images, or their masks, as in segmentation datasets.
bool IsImagesName(std::string_view name);
bool IsMasksName(std::string_view name);
// Whether this is the name that Hugging Face gives to the table of a directory's images.
bool IsMetadataName(std::string_view name);
// Whether a field may have this name: text without control characters, quotes or backslashes.
bool IsFieldName(std::string_view name);

// Adds advice to `missing`, the kNotFound of `path`, if the path contains a pattern or "~": shells expand
// these, the daemon does not. Returns any other status unchanged.
Status ExplainMissing(const Status& missing, std::string_view path);

}  // namespace pinfeed
