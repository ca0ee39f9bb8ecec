// SPDX-License-Identifier: Apache-2.0
// Whether a dataset's files are those they were. In: its path below an allowed root. Out: a number.
#pragma once

#include <cstdint>

#include "common/base/result.h"
#include "server/storage/local_file.h"

namespace pinfeed {

// Differs when the file or directory, or an entry directly in it, has changed. Blocks on the disk, looks at
// nothing outside the root; links are followed as far as they stay below it.
Result<uint64_t> StampOf(const LocalPath& base);

}  // namespace pinfeed
