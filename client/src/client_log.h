// SPDX-License-Identifier: Apache-2.0
// Delivers the library's warnings to the function that the program set, or else to stderr.
#pragma once

#include <string>

#include "client/include/pinfeed/pinfeed.h"

namespace pinfeed {

// Process-wide. Null silences the log.
void SetLogFunction(pf_log_function function, void* user);

// Calls the function on this thread without holding a lock. If no function was set, prints warnings to stderr
// and drops other messages.
void ClientLog(pf_log_level level, const std::string& message);

}  // namespace pinfeed
