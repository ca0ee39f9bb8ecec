// SPDX-License-Identifier: Apache-2.0
// The format "npy": arrays whose first dimension counts the samples. In: a .npy file, or a directory of them.
// Out: one field per array.
#pragma once

#include <memory>
#include <string>

#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

// A directory with more .npy files is taken for one file per sample, which this format is not; each file
// stays open.
inline constexpr size_t kMaxNpyFields = 256;

// A directory gives the fields <field>.npy, in bytewise order of their names; a single file gives the field
// "data". Samples are read straight into their place, then swapped in place if big-endian. A Fortran-order
// array spreads each sample over the whole file: it is gathered in bounded memory, correct but slow (one read
// per element once the first dimension spans more than 4 KiB); np.ascontiguousarray before np.save mends it.
// `user_path` is what DatasetInfo::path will say.
Result<std::shared_ptr<const Dataset>> OpenNpyDirectory(const Location& base, std::string user_path);
Result<std::shared_ptr<const Dataset>> OpenNpyFile(const Location& base, std::string user_path);

}  // namespace pinfeed
