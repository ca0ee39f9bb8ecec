// SPDX-License-Identifier: Apache-2.0
// Opens datasets below the allowed roots. In: a DatasetSpec. Out: an open Dataset.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/faults.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "server/dataset/dataset.h"
#include "server/dataset/index_store.h"
#include "server/storage/storage.h"

namespace pinfeed {

// kInvalidArgument, with the known formats, if `format` is neither known nor empty (to be detected).
Status CheckDatasetFormat(std::string_view format);

// Adds a fault for an unknown format, for each option of another format, and for each invalid value.
void CheckDatasetOptions(const DatasetSpec& spec, Faults& faults);

// Opens the absolute path `spec.path`; the caller has resolved `spec.name`. Every file is opened with
// openat2(RESOLVE_BENEATH) on the root that contains the path, so neither "..", nor a symbolic link, nor a
// race can escape the root. kPermissionDenied: the path is in no root, or a link leaves the root. kNotFound,
// kInvalidArgument and kDataLoss name the file and the reason. `store` has what earlier opens kept.
Result<std::shared_ptr<const Dataset>> OpenDataset(const DatasetSpec& spec,
                                                   const std::vector<std::string>& allowed_roots,
                                                   IndexStore* store = nullptr);

// Like OpenDataset, for a resolved location.
Result<std::shared_ptr<const Dataset>> OpenDatasetAt(std::shared_ptr<const Location> location,
                                                     const DatasetSpec& spec, IndexStore* store = nullptr);

}  // namespace pinfeed
