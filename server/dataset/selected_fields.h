// SPDX-License-Identifier: Apache-2.0
// Selects fields of a dataset. In: a dataset, and the names of the fields that a feed requests. Out: a
// dataset with only these fields, in the requested order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "server/dataset/dataset.h"

namespace pinfeed {

// If `names` is empty, selects all fields except those that are read on request only. With `sample_path`,
// adds the field of that name at the end. Samples, classes and fingerprint do not change, so cursors do not
// depend on the fields. kInvalidArgument names a field that the dataset lacks, and those that it has.
// Precondition: `names` are distinct.
Result<std::shared_ptr<const Dataset>> SelectFields(std::shared_ptr<const Dataset> dataset,
                                                    std::vector<std::string> names, bool sample_path = false);

}  // namespace pinfeed
