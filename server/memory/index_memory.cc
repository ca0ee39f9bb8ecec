// SPDX-License-Identifier: Apache-2.0
#include "server/memory/index_memory.h"

#include <algorithm>
#include <utility>

#include "common/os/freed_memory.h"

namespace pinfeed {
namespace {

constexpr uint64_t kUnasked = uint64_t{1} << 20;  // is not asked for
constexpr uint64_t kStep = uint64_t{8} << 20;

}  // namespace

IndexMemory::~IndexMemory() {
  const MutexLock lock(mutex_);
  // The allocator keeps much of what many small objects took, which would count as used by nobody.
  if (reserved_ > 0) ReturnFreedMemory();
}

Status IndexMemory::Add(uint64_t bytes) {
  const MutexLock lock(mutex_);
  needed_ += bytes;
  if (needed_ <= std::max(kUnasked, reserved_)) return OkStatus();
  const uint64_t more = std::max(kStep, needed_ - reserved_);
  ASSIGN_OR_RETURN(HostMemoryLedger::Reservation reservation, ledger_.ReserveForIndex(more));
  reservations_.push_back(std::move(reservation));
  reserved_ += more;
  return OkStatus();
}

}  // namespace pinfeed
