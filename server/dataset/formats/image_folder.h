// SPDX-License-Identifier: Apache-2.0
// The format "image_folder": path/<class>/**/<image>. In: a directory. Out: the fields "image" (the file's
// bytes) and "label" (int64 scalar).
#pragma once

#include <memory>
#include <string>

#include "server/dataset/dataset.h"
#include "server/dataset/index_store.h"
#include "server/storage/storage.h"

namespace pinfeed {

// Lists `base` and the directories below it, except those that `store` knows. Sample i is sample i of
// torchvision's ImageFolder: classes in Python's order of their names, within a class ordered by (directory,
// file name), including nested directories. Files of other kinds are ignored. Images of an unsupported kind
// (.webp, .bmp, ...), dangling links to images and classes without images are errors that name them, so
// samples never go missing silently. `user_path` becomes DatasetInfo::path.
Result<std::shared_ptr<const Dataset>> OpenImageFolder(std::shared_ptr<const Location> base,
                                                       std::string user_path, IndexStore* store = nullptr);

}  // namespace pinfeed
