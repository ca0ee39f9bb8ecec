// SPDX-License-Identifier: Apache-2.0
// A client's process, by its number and by a descriptor that tells its end.
#pragma once

#include <sys/types.h>

#include <memory>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: one process that may have memory of ours mapped. A value; copies share the descriptor. Threads:
// any. Invariant: the descriptor names the process that had the number when it was opened, whoever has it
// later.
struct ClientProcess {
  pid_t pid = 0;
  std::shared_ptr<const UniqueFd> pidfd;

  static Result<ClientProcess> Open(pid_t pid);
  // True once it has ended, waited for by its parent or not. What it left on a GPU may still run.
  bool HasEnded() const;
};

}  // namespace pinfeed
