// SPDX-License-Identifier: Apache-2.0
// Opens datasets. In: a location, and the DatasetSpec that led to it. Out: an open Dataset.
#pragma once

#include <memory>
#include <string_view>

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

// Opens `location`, which is that of `spec.path`. If a program may rename links in that path meanwhile, the
// location must have followed them (PathLinks::kFollowedOnce): files of two folders would be mixed.
// kPermissionDenied: a link leaves the root. kNotFound, kInvalidArgument and kDataLoss name the file and the
// reason. `store` has what earlier opens kept.
Result<std::shared_ptr<const Dataset>> OpenDataset(std::shared_ptr<const Location> location,
                                                   const DatasetSpec& spec, IndexStore* store = nullptr);

}  // namespace pinfeed
