// SPDX-License-Identifier: Apache-2.0
// The format "image_folder": path/<class>/**/<image>. In: a directory. Out: fields "image" (the file's bytes)
// and "label" (int64 scalar).
#pragma once

#include <memory>
#include <string>

#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

// A larger image file is refused when it is read: no camera makes one, and a sparse file must not fill the
// memory.
inline constexpr uint64_t kMaxImageFileBytes = uint64_t{1} << 30;

// Lists `base` once; sample i is sample i of torchvision's ImageFolder: classes in bytewise order of their
// names, within a class ordered by (directory, file name), nested directories included. Files of other kinds
// are passed over, but image files that cannot be decoded here (.webp, .bmp, ...), dangling links to images
// and classes without image are errors that name them: samples never go missing silently. `user_path` is what
// DatasetInfo::path will say.
Result<std::shared_ptr<const Dataset>> OpenImageFolder(std::shared_ptr<const Location> base,
                                                       std::string user_path);

}  // namespace pinfeed
