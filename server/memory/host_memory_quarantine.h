// SPDX-License-Identifier: Apache-2.0
// Host memory of feeds that have ended which a client has kept, farewell or not. In: arenas that somebody
// still has open or mapped. Out: their charge, given back once nobody has.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

// Whether no descriptor and no mapping of a memfd is left but `fd` and what was made of it. `fd` is one that
// was opened anew (ReopenMemfd), since what memfd_create gives is not counted by the kernel. The kernel's
// word is a write lease, which it grants to the only one that has a file open (fcntl(2), F_SETLEASE). True as
// well where it knows no leases: nothing is kept then.
bool HasNoOtherUser(int fd);

// Purpose: keeps the charge of memory that somebody keeps, so that it is not spent twice. Owns: what it is
// given; a thread, since nobody tells when the last mapping goes. Threads: any; none blocks. Errors: none.
// Invariant: a charge goes back when the memory is gone from every process, or with the daemon.
class HostMemoryQuarantine {
 public:
  HostMemoryQuarantine();
  ~HostMemoryQuarantine();
  HostMemoryQuarantine(const HostMemoryQuarantine&) = delete;
  HostMemoryQuarantine& operator=(const HostMemoryQuarantine&) = delete;

  // `fd` as for HasNoOtherUser.
  void Add(UniqueFd fd, BudgetLease lease) PF_EXCLUDES(mutex_);
  uint64_t bytes() const PF_EXCLUDES(mutex_);
  // Until nothing is kept, at most until `deadline`.
  void AwaitNone(std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);

 private:
  struct Piece {
    UniqueFd fd;
    BudgetLease lease;
  };
  void Run() PF_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Piece> pieces_ PF_GUARDED_BY(mutex_);
  bool freeing_ PF_GUARDED_BY(mutex_) = false;  // what is in pieces_ no more
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pinfeed
