// SPDX-License-Identifier: Apache-2.0
// Some of a dataset's fields. In: a dataset, and the names of the fields that a feed asks for. Out: a dataset
// that has only these, in the order in which they were asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "server/dataset/dataset.h"

namespace pinfeed {

// No `names`: all fields but those that come on request only. `sample_path`: and the field of that name
// behind them. Samples, classes and fingerprint stay the same: what a cursor counts does not depend on the
// fields. kInvalidArgument names the fields that the dataset lacks, and those it has. Precondition: no name
// comes twice.
Result<std::shared_ptr<const Dataset>> SelectFields(std::shared_ptr<const Dataset> dataset,
                                                    std::vector<std::string> names, bool sample_path = false);

}  // namespace pinfeed
