// SPDX-License-Identifier: Apache-2.0
// Opens datasets of a test's own files.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/dataset/open_dataset.h"
#include "tests/support/testing.h"

namespace pinfeed {

// What lies below the directory as `name`; its DatasetInfo::path is "as named".
inline Result<std::shared_ptr<const Dataset>> OpenLocal(const TempDir& directory, std::string_view name,
                                                        std::string format, ParameterMap options = {},
                                                        IndexStore* store = nullptr) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Location> location,
                   ResolveLocation((directory / name).string(), {directory.path().string()}));
  DatasetSpec spec;
  spec.path = "as named";
  spec.format = std::move(format);
  spec.options = std::move(options);
  return OpenDataset(std::move(location), spec, store);
}

}  // namespace pinfeed
