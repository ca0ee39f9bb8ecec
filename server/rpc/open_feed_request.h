// SPDX-License-Identifier: Apache-2.0
// Checks a request to open a feed, as far as that is possible without its dataset.
#pragma once

#include "common/base/result.h"
#include "proto/convert.h"

namespace pinfeed {

// kInvalidArgument with every fault of the request, of its dataset's options and of its transforms.
Result<OpenFeedArguments> ReadOpenFeedRequest(const v1::OpenFeedRequest& request);

}  // namespace pinfeed
