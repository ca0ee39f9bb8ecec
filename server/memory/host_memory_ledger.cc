// SPDX-License-Identifier: Apache-2.0
#include "server/memory/host_memory_ledger.h"

#include "common/base/byte_size.h"

namespace pinfeed {
namespace {

// Headroom for the daemon's memory outside of arenas: worker buffers, calls, session pages and kernel memory.
// Half of it may be used up by the time that a slot is allocated.
constexpr uint64_t kDaemonHeadroomBytes = uint64_t{16} << 20;

}  // namespace

struct HostMemoryLedger::Need {
  const char* whose;
  const char* advice;
};

namespace {

constexpr HostMemoryLedger::Need kFeedsNeed = {
    "feeds still",
    "use smaller batches or fewer slots, close a feed, or have the operator give the daemon more memory or a "
    "smaller pool_bytes"};
constexpr HostMemoryLedger::Need kIndexesNeed = {
    "the dataset's index and feeds still",
    "split the dataset, close a feed, or have the operator give the daemon more memory"};
constexpr HostMemoryLedger::Need kSamplesNeed = {
    "samples that are being loaded",
    "use smaller files, or have the operator give the daemon more memory or fewer workers"};

}  // namespace

HostMemoryLedger& HostMemoryLedger::ForThisProcess() {
  static HostMemoryLedger ledger([](uint64_t enough_bytes) { return ReadHostMemory({}, enough_bytes); });
  return ledger;
}

std::optional<HostMemoryLedger::Lack> HostMemoryLedger::Take(std::atomic<uint64_t>& taken, uint64_t bytes,
                                                             uint64_t headroom_bytes) {
  const MutexLock lock(deciding_);
  return TakeLocked(taken, bytes, headroom_bytes);
}

std::optional<HostMemoryLedger::Lack> HostMemoryLedger::TakeLocked(std::atomic<uint64_t>& taken,
                                                                   uint64_t bytes, uint64_t headroom_bytes) {
  const uint64_t wanted = taken + bytes;
  // If the available memory cannot be read, for example without free descriptors, the kernel decides.
  Result<HostMemory> memory = read_(wanted + headroom_bytes);
  if (memory.ok() && memory->available_bytes < wanted + headroom_bytes)
    return Lack{*std::move(memory), wanted, headroom_bytes};
  taken += bytes;
  return std::nullopt;
}

Status HostMemoryLedger::TakeOrFree(std::atomic<uint64_t>& taken, uint64_t bytes, uint64_t headroom_bytes,
                                    const Need& need) {
  std::optional<Lack> lack = Take(taken, bytes, headroom_bytes);
  if (!lack) return OkStatus();
  {
    const MutexLock lock(freeing_);
    if (free_spare_) lack = Take(taken, bytes, headroom_bytes);  // others may have freed enough
    while (lack && free_spare_ && free_spare_(lack->bytes())) lack = Take(taken, bytes, headroom_bytes);
  }
  if (!lack) return OkStatus();
  return ResourceExhausted("the host has too little memory: of what " + lack->memory.available_by +
                           " allows, " + ExactByteSize(lack->memory.available_bytes) + " are left, but " +
                           need.whose + " need " + ExactByteSize(lack->wanted_bytes) + " and " +
                           ByteSize(headroom_bytes) + " are reserved for the daemon itself; " + need.advice);
}

void HostMemoryLedger::SetFreeSpare(FreeSpare free_spare) {
  const MutexLock lock(freeing_);
  PF_CHECK(!free_spare || !free_spare_, "the ledger has spare memory of one owner");
  free_spare_ = std::move(free_spare);
}

Result<HostMemoryLedger::Reservation> HostMemoryLedger::ReserveOrFree(uint64_t bytes, const Need& need) {
  RETURN_IF_ERROR(TakeOrFree(reserved_, bytes, kDaemonHeadroomBytes, need));
  return Reservation(this, bytes);
}

Result<HostMemoryLedger::Reservation> HostMemoryLedger::Reserve(uint64_t bytes) {
  return ReserveOrFree(bytes, kFeedsNeed);
}

Result<HostMemoryLedger::Reservation> HostMemoryLedger::ReserveForIndex(uint64_t bytes) {
  return ReserveOrFree(bytes, kIndexesNeed);
}

std::optional<HostMemoryLedger::Reservation> HostMemoryLedger::ReserveSpare(uint64_t bytes,
                                                                            uint64_t keep_free_bytes) {
  const MutexLock lock(deciding_);
  if (TakeLocked(reserved_, bytes, kDaemonHeadroomBytes + keep_free_bytes + allocating_)) return std::nullopt;
  return Reservation(this, bytes);
}

Result<std::optional<HostMemoryLedger::Reservation>> HostMemoryLedger::ReserveForSample(uint64_t bytes) {
  if (bytes <= kSmallSampleBytes) return std::nullopt;
  std::optional<Reservation> reservation(Reservation(this, 0));
  const Status available =
      large_samples_.Begin()
          ? reservation->Begin(bytes, kSamplesNeed)
          : ResourceExhausted(
                "the host has too little memory: another sample is loaded with what there is; " +
                std::string(kSamplesNeed.advice));
  if (available.ok()) return reservation;
  LargeSamples::Refuse();
  return available.WithContext("a sample that takes " + ByteSize(bytes));
}

HostMemoryLedger::Reservation::~Reservation() {
  ledger_->allocating_ -= allocating_;
  ledger_->reserved_ -= unallocated_;
}

Status HostMemoryLedger::Reservation::BeginAllocation(uint64_t bytes) {
  return Begin(bytes, kFeedsNeed);
}

Status HostMemoryLedger::Reservation::Begin(uint64_t bytes, const Need& need) {
  RETURN_IF_ERROR(ledger_->TakeOrFree(ledger_->allocating_, bytes, kDaemonHeadroomBytes / 2, need));
  allocating_ += bytes;
  return OkStatus();
}

void HostMemoryLedger::Reservation::EndAllocation(uint64_t bytes) {
  allocating_ -= bytes;
  ledger_->allocating_ -= bytes;
  Allocate(bytes);
}

void HostMemoryLedger::Reservation::Allocate(uint64_t bytes) {
  unallocated_ -= bytes;
  ledger_->reserved_ -= bytes;
}

Status ResizeForSample(uint64_t bytes, std::vector<std::byte>& buffer) {
  if (bytes > buffer.capacity()) {
    std::vector<std::byte>().swap(buffer);
    ASSIGN_OR_RETURN(const auto reservation, HostMemoryLedger::ForThisProcess().ReserveForSample(bytes));
    buffer = std::vector<std::byte>(bytes);  // touches all of it
  }
  buffer.resize(bytes);
  return OkStatus();
}

}  // namespace pinfeed
