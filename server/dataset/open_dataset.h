// SPDX-License-Identifier: Apache-2.0
// From a DatasetSpec to an open Dataset, behind the list of allowed roots.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/faults.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

// kInvalidArgument, with the known ones, unless `format` is one of them or empty (to be found out).
Status CheckDatasetFormat(std::string_view format);

// Adds a fault for a format that is not known, an option of another format, and a value that cannot be.
void CheckDatasetOptions(const DatasetSpec& spec, Faults& faults);

// Opens `spec.path` (absolute; `spec.name` was resolved before). Every open below goes through
// openat2(RESOLVE_BENEATH) on the one root that holds the path, so neither "..", nor a symbolic link, nor a
// race can leave it. kPermissionDenied: no root holds it, or a link leaves the root. kNotFound /
// kInvalidArgument / kDataLoss name the file and the reason.
Result<std::shared_ptr<const Dataset>> OpenDataset(const DatasetSpec& spec,
                                                   const std::vector<std::string>& allowed_roots);

// The same of a place that was resolved.
Result<std::shared_ptr<const Dataset>> OpenDatasetAt(std::shared_ptr<const Location> location,
                                                     const DatasetSpec& spec);

}  // namespace pinfeed
