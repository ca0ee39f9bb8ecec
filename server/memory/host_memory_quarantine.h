// SPDX-License-Identifier: Apache-2.0
// Host memory that the daemon has no use for, and processes do: of ended feeds, whether their clients sent a
// bye or not, and of single batches. In: memory that a process has open or mapped. Out: its charge, released
// once no process does.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

// Whether `fd` and its own mappings are the only users of a memfd. `fd` must come from ReopenMemfd, because
// the kernel does not count the descriptor from memfd_create. Uses a write lease, which the kernel grants
// only to the sole opener (fcntl(2), F_SETLEASE). Returns true if leases are unsupported; nothing is
// quarantined then.
bool HasNoOtherUser(int fd);

// Purpose: keeps memory charged while a process still uses it, so that it is not granted twice.
// Owns: the entries, and a thread that polls, because the kernel does not report the last unmapping.
// Threads: any; only AwaitNone blocks. Errors: none.
// Invariant: a charge is released when no process has the memory, or with the daemon.
class HostMemoryQuarantine {
 public:
  // `thread`: the name of its thread.
  explicit HostMemoryQuarantine(const std::string& thread = "host-quarantine");
  ~HostMemoryQuarantine();

  // `fd` as for HasNoOtherUser. `until_free` is released right after the charge.
  void Add(UniqueFd fd, BudgetLease lease, std::shared_ptr<void> until_free = nullptr) PF_EXCLUDES(mutex_);
  uint64_t bytes() const PF_EXCLUDES(mutex_);
  // Waits until the quarantine is empty, at most until `deadline`.
  void AwaitNone(std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);

 private:
  // Destroyed in reverse: the memory is freed, then no longer charged.
  struct Entry {
    std::shared_ptr<void> until_free;
    BudgetLease lease;
    UniqueFd fd;
  };
  void Run() PF_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Entry> entries_ PF_GUARDED_BY(mutex_);
  bool freeing_ PF_GUARDED_BY(mutex_) = false;  // entries already removed from entries_
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pinfeed
