// SPDX-License-Identifier: Apache-2.0
#include "server/memory/index_memory.h"

#include <algorithm>
#include <utility>

namespace pinfeed {

Status IndexMemory::Add(uint64_t bytes) {
  if (bytes > left_) {
    const uint64_t step = std::max(kStep, bytes);
    last_step_.reset();
    ASSIGN_OR_RETURN(HostMemoryLedger::Reservation reservation, ledger_.ReserveForIndex(step));
    last_step_.emplace(std::move(reservation));
    left_ = step;
  }
  left_ -= bytes;
  return OkStatus();
}

}  // namespace pinfeed
