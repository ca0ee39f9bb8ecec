// SPDX-License-Identifier: Apache-2.0
// Memory for single batches that do not fit into the slots of their feed. In: sizes. Out: memory files, which
// are charged to the feed's user as long as any process has them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/wire/shared_page.h"
#include "server/memory/host_memory_quarantine.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

// Purpose: grants the one-off memory of one feed, and counts it. The daemon makes each file, of a fixed size,
// and keeps a descriptor of it, so that no process can have more than is charged. Borrows: the budget and the
// quarantine, which outlive it and keep the files and their charges. Threads: any; nothing blocks. Errors: by
// Grant.
class OneOffMemory {
 public:
  // Grants of a feed at one time. Each takes a descriptor of the daemon's.
  static constexpr uint32_t kMaxGrants = 2 * kMaxSlots;
  struct Counts {
    uint64_t batches = 0;  // granted so far
    uint64_t bytes = 0;    // that processes have now
    uint64_t peak_bytes = 0;
  };

  OneOffMemory(MemoryBudget& pool, HostMemoryQuarantine& users, uid_t owner)
      : pool_(pool), users_(users), owner_(owner), in_use_(std::make_shared<InUse>()) {}

  // Returns a descriptor of `bytes` of memory, for one process. The memory is allocated as it is written.
  // `until_free` is released, on any thread, once no process has the memory.
  // kResourceExhausted, with the numbers and in at most 200 bytes, when the pool or the user's part of it
  // does not suffice. Precondition: bytes != 0.
  Result<UniqueFd> Grant(uint64_t bytes, std::shared_ptr<const void> until_free = nullptr);
  Counts counts() const;

 private:
  // Outlives the feed, with the grants.
  struct InUse {
    std::atomic<uint32_t> grants{0};
    std::atomic<uint64_t> bytes{0};
  };
  struct Use;  // of one grant

  MemoryBudget& pool_;
  HostMemoryQuarantine& users_;
  const uid_t owner_;
  const std::shared_ptr<InUse> in_use_;
  std::atomic<uint64_t> granted_{0};
  std::atomic<uint64_t> peak_bytes_{0};
};

}  // namespace pinfeed
