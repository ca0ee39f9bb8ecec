// SPDX-License-Identifier: Apache-2.0
// One image file that a client names by its path, in no dataset of the daemon's.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace pinfeed {

// Reads the file at an absolute path below one of `allowed_roots`, which it is opened below (see
// ResolveLocation). Errors name the path: kPermissionDenied if it is below none or leaves it; kDataLoss if
// the file is empty, larger than kMaxImageFileBytes, or gets shorter meanwhile; else the system's.
Status ReadImageFile(const std::string& path, const std::vector<std::string>& allowed_roots,
                     std::vector<std::byte>& out);

}  // namespace pinfeed
