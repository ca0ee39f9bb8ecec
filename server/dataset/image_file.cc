// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/image_file.h"

#include <memory>

#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

Status ReadImageFile(const std::string& path, const std::vector<std::string>& allowed_roots,
                     std::vector<std::byte>& out) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Location> location, ResolveLocation(path, allowed_roots));
  ASSIGN_OR_RETURN(const std::unique_ptr<const RandomAccessFile> file, location->OpenFile(""));
  return file->ReadAll(kMaxImageFileBytes, out);
}

}  // namespace pinfeed
