// SPDX-License-Identifier: Apache-2.0
#include "server/memory/pinned_pool.h"

#include <string>
#include <utility>

#include "common/byte_size.h"

namespace pinfeed {

PoolLease::PoolLease(PoolLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PoolLease& PoolLease::operator=(PoolLease&& other) noexcept {
  if (this != &other) {
    Return();
    pool_ = std::exchange(other.pool_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

PoolLease::~PoolLease() {
  Return();
}

void PoolLease::Return() noexcept {
  if (PinnedPool* pool = std::exchange(pool_, nullptr)) pool->Return(std::exchange(bytes_, 0));
}

PinnedPool::~PinnedPool() {
  PF_CHECK(used_bytes() == 0, "the pool is destroyed while leases are out");
}

Result<PoolLease> PinnedPool::Reserve(uint64_t bytes) {
  MutexLock lock(mutex_);
  if (bytes > capacity_bytes_) {
    return ResourceExhausted("reserve " + ExactByteSize(bytes) + " of the host pool, which has " +
                             ExactByteSize(capacity_bytes_) +
                             " in all; ask for a smaller batch or fewer slots, or give the daemon more "
                             "pool_bytes");
  }
  if (bytes > capacity_bytes_ - used_bytes_) {
    return ResourceExhausted("reserve " + ExactByteSize(bytes) +
                             " of the host pool: " + ExactByteSize(capacity_bytes_ - used_bytes_) +
                             " of its " + ByteSize(capacity_bytes_) +
                             " are free, the rest is in use by the feeds that "
                             "`pinfeed status` lists; close one of them, ask for a smaller batch or fewer "
                             "slots, or give the daemon more pool_bytes");
  }
  used_bytes_ += bytes;
  return PoolLease(this, bytes);
}

uint64_t PinnedPool::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

void PinnedPool::Return(uint64_t bytes) noexcept {
  MutexLock lock(mutex_);
  used_bytes_ -= bytes;
}

}  // namespace pinfeed
