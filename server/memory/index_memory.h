// SPDX-License-Identifier: Apache-2.0
// Asks for the memory that the index of a dataset takes while it is made, before it is taken.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/result.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {

// Purpose: reserves memory of the host's ledger in steps, as an index grows. Only the last step is reserved:
// what was asked for before has been taken, which shows in what the host has left. Threads: one at a time.
// Errors: kResourceExhausted if the host lacks the memory.
class IndexMemory {
 public:
  explicit IndexMemory(HostMemoryLedger& ledger = HostMemoryLedger::ForThisProcess()) : ledger_(ledger) {}

  // So many bytes more are about to be taken, and those of earlier calls have been.
  Status Add(uint64_t bytes);

 private:
  static constexpr uint64_t kFirstBytes = uint64_t{1} << 20;  // taken without asking
  static constexpr uint64_t kStep = uint64_t{8} << 20;

  HostMemoryLedger& ledger_;
  uint64_t left_ = kFirstBytes;  // may be taken without asking again
  std::optional<HostMemoryLedger::Reservation> last_step_;
};

}  // namespace pinfeed
