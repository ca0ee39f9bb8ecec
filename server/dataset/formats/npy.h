// SPDX-License-Identifier: Apache-2.0
// The format "npy": arrays whose first dimension counts the samples. In: a .npy file, or a directory of them.
// Out: one field per array.
#pragma once

#include <memory>
#include <string>

#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

// The maximum number of .npy files in a directory; each stays open. More files are probably one per sample,
// which this format does not support.
inline constexpr size_t kMaxNpyFields = 256;

// A directory has one field per <field>.npy, in bytewise order of their names; a single file has the field
// "data". Samples are read directly into the caller's buffer; big-endian ones are swapped in place.
// In a Fortran-order array each sample is spread over the whole file. It is gathered in bounded memory, but
// slowly: one read per element if the first dimension spans more than 4 KiB. np.ascontiguousarray before
// np.save avoids that. `user_path` becomes DatasetInfo::path.
Result<std::shared_ptr<const Dataset>> OpenNpyDirectory(const Location& base, std::string user_path);
Result<std::shared_ptr<const Dataset>> OpenNpyFile(const Location& base, std::string user_path);

}  // namespace pinfeed
