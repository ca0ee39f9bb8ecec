// SPDX-License-Identifier: Apache-2.0
// What of the daemon hangs, in words. In: pinfeed.v1.GetStatusResponse as JSON. Out: a line.
#pragma once

#include <string>

#include "client/cli/json_field.h"

namespace pinfeed {

// The thread that has hung for longest, at what, and how many more there are; empty: none does.
std::string HungLine(const Json& status);

}  // namespace pinfeed
