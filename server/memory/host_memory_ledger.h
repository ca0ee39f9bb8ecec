// SPDX-License-Identifier: Apache-2.0
// Whether the host still has the memory that arenas in it will take. In: what an arena is promised when it is
// made, and what of that it takes, slot by slot. Out: a refusal by name, where the kernel would have ended a
// process: it grants shared memory first and looks for pages when they are touched or allocated.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/base/result.h"
#include "common/os/host_limits.h"

namespace pinfeed {

// Purpose: sets what was promised and not yet taken against what the host and its control groups have left.
// Threads: all methods from any thread; they read a few files. Errors: kResourceExhausted, with the numbers.
// Invariant: reserved_ is the sum of what the living promises have not taken.
class HostMemoryLedger {
 public:
  // Reads the memory that there is; `enough_bytes` as of ReadHostMemory.
  using Read = std::function<Result<HostMemory>(uint64_t enough_bytes)>;
  explicit HostMemoryLedger(Read read) : read_(std::move(read)) {}
  HostMemoryLedger(const HostMemoryLedger&) = delete;
  HostMemoryLedger& operator=(const HostMemoryLedger&) = delete;
  ~HostMemoryLedger() = default;
  // Memory is one process's, whoever in it takes some.
  static HostMemoryLedger& OfThisProcess();

  // Purpose: memory that was there when it was asked for. Borrows: the room, which outlives it. Move-only.
  // Threads: any.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept
        : room_(other.room_), left_(other.left_.exchange(0)), taking_(other.taking_.exchange(0)) {}
    Reservation& operator=(Reservation&& other) = delete;
    ~Reservation();
    // So many bytes of it are about to be taken, if they are still there: others on this host may have taken
    // them. On an error nothing is.
    Status Begin(uint64_t bytes);
    // They were taken.
    void End(uint64_t bytes);

   private:
    friend class HostMemoryLedger;
    Reservation(HostMemoryLedger* room, uint64_t bytes) : room_(room), left_(bytes) {}
    HostMemoryLedger* room_;
    std::atomic<uint64_t> left_;
    std::atomic<uint64_t> taking_{0};  // of left_
  };
  // Precondition: a pool has lent them, so that no sum overflows.
  Result<Reservation> Ask(uint64_t bytes);

 private:
  Status Check(uint64_t bytes, uint64_t kept_bytes) const;

  const Read read_;
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> taking_{0};  // of reserved_
};

}  // namespace pinfeed
