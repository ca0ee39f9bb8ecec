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

Status HostMemoryLedger::Check(uint64_t bytes, uint64_t headroom_bytes, const Need& need,
                               uint64_t& lacking) const {
  // If the available memory cannot be read, for example without free descriptors, the kernel decides.
  const Result<HostMemory> read = read_(bytes + headroom_bytes);
  if (!read.ok() || read->available_bytes >= bytes + headroom_bytes) return OkStatus();
  const HostMemory& memory = *read;
  lacking = bytes + headroom_bytes - memory.available_bytes;
  return ResourceExhausted("the host has too little memory: of what " + memory.available_by + " allows, " +
                           ExactByteSize(memory.available_bytes) + " are left, but " + need.whose + " need " +
                           ExactByteSize(bytes) + " and " + ByteSize(headroom_bytes) +
                           " are reserved for the daemon itself; " + need.advice);
}

Status HostMemoryLedger::Promise(uint64_t bytes, const Need& need, uint64_t& lacking) {
  const MutexLock lock(deciding_);
  RETURN_IF_ERROR(Check(reserved_ + bytes, kDaemonHeadroomBytes, need, lacking));
  reserved_ += bytes;
  return OkStatus();
}

Status HostMemoryLedger::Begin(uint64_t bytes, const Need& need, uint64_t& lacking) {
  const MutexLock lock(deciding_);
  RETURN_IF_ERROR(Check(allocating_ + bytes, kDaemonHeadroomBytes / 2, need, lacking));
  allocating_ += bytes;
  return OkStatus();
}

Status HostMemoryLedger::WithSpare(const std::function<Status(uint64_t& lacking)>& attempt) {
  uint64_t lacking = 0;
  Status status = attempt(lacking);
  if (status.ok()) return status;
  const MutexLock lock(freeing_);
  if (!free_spare_) return status;
  status = attempt(lacking);  // others may have freed enough
  if (status.ok() || !free_spare_(lacking)) return status;
  return attempt(lacking);
}

void HostMemoryLedger::SetFreeSpare(FreeSpare free_spare) {
  const MutexLock lock(freeing_);
  PF_CHECK(!free_spare || !free_spare_, "the ledger has spare memory of one owner");
  free_spare_ = std::move(free_spare);
}

Result<HostMemoryLedger::Reservation> HostMemoryLedger::ReserveOrFree(uint64_t bytes, const Need& need) {
  RETURN_IF_ERROR(WithSpare([&](uint64_t& lacking) { return Promise(bytes, need, lacking); }));
  return Reservation(this, bytes);
}

Result<HostMemoryLedger::Reservation> HostMemoryLedger::Reserve(uint64_t bytes) {
  return ReserveOrFree(bytes, kFeedsNeed);
}

Result<HostMemoryLedger::Reservation> HostMemoryLedger::ReserveForIndex(uint64_t bytes) {
  return ReserveOrFree(bytes, kIndexesNeed);
}

Result<HostMemoryLedger::Reservation> HostMemoryLedger::ReserveSpare(uint64_t bytes,
                                                                     uint64_t keep_free_bytes) {
  uint64_t lacking = 0;
  const MutexLock lock(deciding_);
  RETURN_IF_ERROR(
      Check(reserved_ + bytes, kDaemonHeadroomBytes + keep_free_bytes + allocating_, kFeedsNeed, lacking));
  reserved_ += bytes;
  return Reservation(this, bytes);
}

Result<std::optional<HostMemoryLedger::Reservation>> HostMemoryLedger::ReserveForSample(uint64_t bytes) {
  if (bytes <= kSmallSampleBytes) return std::optional<Reservation>();
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
  RETURN_IF_ERROR(
      ledger_->WithSpare([&](uint64_t& lacking) { return ledger_->Begin(bytes, need, lacking); }));
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
