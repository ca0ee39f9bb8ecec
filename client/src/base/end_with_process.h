// SPDX-License-Identifier: Apache-2.0
// Ends this process when another one ends. In: a pidfd.
#pragma once

#include "common/base/status.h"

namespace pinfeed {

// As pf_end_with_process. Starts a detached thread, which owns the descriptor and ends only with the process.
// Throws std::system_error when no thread can be started.
Status EndWithProcess(int pidfd);

}  // namespace pinfeed
