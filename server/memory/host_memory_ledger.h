// SPDX-License-Identifier: Apache-2.0
// Tracks whether the host still has the memory that arenas and large samples will allocate. In: reservations
// of arenas, and their allocations, slot by slot; those of samples. Out: an error instead of a process killed
// by the kernel, which grants shared memory first and looks for pages only when they are touched or
// allocated.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/os/host_limits.h"
#include "server/memory/large_samples.h"

namespace pinfeed {

// Purpose: compares reserved but not yet allocated memory with what the host and its control groups have
// left.
// Threads: all methods from any thread; they read a few files. Errors: kResourceExhausted, with numbers.
// Invariant: reserved_ is the sum of what the live reservations have not allocated yet.
class HostMemoryLedger {
 public:
  // Buffers of samples are kept from sample to sample up to this size.
  static constexpr uint64_t kKeptBufferBytes = uint64_t{64} << 20;
  // No memory is asked for smaller ones.
  static constexpr uint64_t kSmallSampleBytes = uint64_t{16} << 20;
  struct Need;  // what needs memory, and what to do without it
  // Reads the available memory; `enough_bytes` as in ReadHostMemory.
  using Read = std::function<Result<HostMemory>(uint64_t enough_bytes)>;
  explicit HostMemoryLedger(Read read) : read_(std::move(read)) {}
  ~HostMemoryLedger() = default;
  // The shared ledger of this process.
  static HostMemoryLedger& ForThisProcess();

  // Purpose: memory that was available when it was reserved. Borrows: the ledger, which outlives it.
  // Move-only. Threads: any.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept
        : ledger_(other.ledger_),
          unallocated_(other.unallocated_.exchange(0)),
          allocating_(other.allocating_.exchange(0)) {}
    Reservation& operator=(Reservation&& other) = delete;
    ~Reservation();
    // Call before allocating `bytes` of the reservation. Checks again, because others on this host may have
    // taken the memory. On an error, nothing is allocated.
    Status BeginAllocation(uint64_t bytes);
    // Call once the bytes are allocated.
    void EndAllocation(uint64_t bytes);
    // In place of these two calls, for small parts of the reservation: does not check again.
    void Allocate(uint64_t bytes);

   private:
    friend class HostMemoryLedger;
    Status Begin(uint64_t bytes, const Need& need);
    Reservation(HostMemoryLedger* ledger, uint64_t bytes) : ledger_(ledger), unallocated_(bytes) {}
    HostMemoryLedger* ledger_;
    std::atomic<uint64_t> unallocated_;
    std::atomic<uint64_t> allocating_{0};  // of an arena: part of unallocated_
  };
  // Precondition: a pool has granted the bytes, so that no sum overflows.
  Result<Reservation> Reserve(uint64_t bytes);
  // Memory that others do not need: besides what they have reserved and are about to take, `keep_free_bytes`
  // and the daemon's headroom have to be left. Null if there is too little. Precondition as above.
  std::optional<Reservation> ReserveSpare(uint64_t bytes, uint64_t keep_free_bytes) PF_EXCLUDES(deciding_);
  // Memory for one sample, of as many bytes as its file says, which is allocated at once and given back soon:
  // what feeds have reserved and not allocated does not count, nor does the sample for them. No pool has
  // granted it. Keep what is returned until all of the memory was written to. Null for little memory, which
  // is not asked for. The thread's LargeSamples::Attempts know of it, if there are some.
  Result<std::optional<Reservation>> ReserveForSample(uint64_t bytes);
  // Memory for the index of a dataset while it is opened: see IndexMemory. No pool has granted it.
  Result<Reservation> ReserveForIndex(uint64_t bytes);
  // Frees spare memory because `bytes` are lacking. Gives back at first what is only promised; where nothing
  // is, frees as much as is lacking, or nothing if there is less. Returns whether it freed anything: the
  // ledger looks again then, and calls again if that is not enough. Called on any thread, under a lock of the
  // ledger and maybe those of the caller; it must not ask the ledger.
  using FreeSpare = std::function<bool(uint64_t bytes)>;
  // Null: there is none any more. Precondition: nobody else has set one.
  void SetFreeSpare(FreeSpare free_spare) PF_EXCLUDES(freeing_);
  LargeSamples& large_samples() { return large_samples_; }
  // What the reservations have not allocated yet.
  uint64_t reserved_bytes() const { return reserved_; }

 private:
  struct Lack {
    HostMemory memory;
    uint64_t wanted_bytes;
    uint64_t headroom_bytes;
    uint64_t bytes() const { return wanted_bytes + headroom_bytes - memory.available_bytes; }
  };
  // Adds `bytes` to what is taken, one of the sums below, if the host has that much and the headroom.
  std::optional<Lack> Take(std::atomic<uint64_t>& taken, uint64_t bytes, uint64_t headroom_bytes)
      PF_EXCLUDES(deciding_);
  std::optional<Lack> TakeLocked(std::atomic<uint64_t>& taken, uint64_t bytes, uint64_t headroom_bytes)
      PF_REQUIRES(deciding_);
  // The same, but frees spare memory for what is lacking.
  Status TakeOrFree(std::atomic<uint64_t>& taken, uint64_t bytes, uint64_t headroom_bytes, const Need& need)
      PF_EXCLUDES(deciding_, freeing_);
  Result<Reservation> ReserveOrFree(uint64_t bytes, const Need& need) PF_EXCLUDES(deciding_, freeing_);

  const Read read_;
  // Held from a check to the count, so that requests at once see each other, and refused ones are not seen.
  Mutex deciding_;
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> allocating_{0};  // by arenas, which is part of reserved_, and by samples
  Mutex freeing_;
  FreeSpare free_spare_ PF_GUARDED_BY(freeing_);
  LargeSamples large_samples_;
};

// Makes a worker's buffer hold `bytes` of a sample, in the ledger of this process; the contents are
// unspecified. Errors: as ReserveForSample.
Status ResizeForSample(uint64_t bytes, std::vector<std::byte>& buffer);

}  // namespace pinfeed
