// SPDX-License-Identifier: Apache-2.0
// Describes which daemon threads hang. In: pinfeed.v1.GetStatusResponse as JSON. Out: a line.
#pragma once

#include <string>

#include "client/cli/json_field.h"

namespace pinfeed {

// Names the thread that has hung longest, what it does, and the number of others. Empty if none hangs.
std::string HungLine(const Json& status);

}  // namespace pinfeed
