// SPDX-License-Identifier: Apache-2.0
// A client process, identified by its pid and a pidfd.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: a process that may have our memory mapped. A value; copies share the descriptor. Threads: any.
// Invariant: the descriptor refers to the original process even if the pid is reused.
struct ClientProcess {
  pid_t pid = 0;
  std::shared_ptr<const UniqueFd> pidfd;

  static Result<ClientProcess> Open(pid_t pid);
  // True once the process has ended, even if its parent has not reaped it. Its work on a GPU may still be
  // running.
  bool HasEnded() const;
};

// Adds a process that may still have memory mapped. Each takes a descriptor, and a group or resident samples
// may have any number of former clients: of many, those that have ended are dropped. If a forked child of one
// still has the memory, its charge may end too early, but the driver keeps the memory itself alive.
void AddRemainingMapper(ClientProcess process, std::vector<ClientProcess>& processes);

}  // namespace pinfeed
