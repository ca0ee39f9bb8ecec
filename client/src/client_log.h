// SPDX-License-Identifier: Apache-2.0
// The library's warnings, on their way to the function the program set (else stderr).
#pragma once

#include <string>

#include "client/include/pinfeed/pinfeed.h"

namespace pinfeed {

// Process-wide. Null silences.
void SetLogFunction(pf_log_function function, void* user);

// Calls the function on this thread, without holding a lock. Without a function set, warnings go to stderr
// and the rest nowhere.
void ClientLog(pf_log_level level, const std::string& message);

}  // namespace pinfeed
