// SPDX-License-Identifier: Apache-2.0
// Asks for the memory that the index of a dataset takes while it is made, before it is taken.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {

// Purpose: reserves memory of the host's ledger in steps, as an index grows. Threads: any.
// Lifetime: make it before the index and what is needed to make it. At its end it gives back the
// reservations, and to the system what was freed meanwhile. Errors: kResourceExhausted if the host lacks the
// memory.
class IndexMemory {
 public:
  explicit IndexMemory(HostMemoryLedger& ledger = HostMemoryLedger::ForThisProcess()) : ledger_(ledger) {}
  ~IndexMemory();
  IndexMemory(const IndexMemory&) = delete;
  IndexMemory& operator=(const IndexMemory&) = delete;

  // So many bytes more are about to be taken.
  Status Add(uint64_t bytes) PF_EXCLUDES(mutex_);

 private:
  HostMemoryLedger& ledger_;
  Mutex mutex_;
  uint64_t needed_ PF_GUARDED_BY(mutex_) = 0;
  uint64_t reserved_ PF_GUARDED_BY(mutex_) = 0;
  std::vector<HostMemoryLedger::Reservation> reservations_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
