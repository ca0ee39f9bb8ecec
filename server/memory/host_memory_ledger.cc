// SPDX-License-Identifier: Apache-2.0
#include "server/memory/host_memory_ledger.h"

#include "common/base/byte_size.h"

namespace pinfeed {
namespace {

// What the daemon takes besides arenas: buffers of workers, calls, pages of sessions, the kernel's own for
// them. Half of it may have been taken by the time that a slot is.
constexpr uint64_t kKeptBytes = uint64_t{16} << 20;

}  // namespace

HostMemoryLedger& HostMemoryLedger::OfThisProcess() {
  static HostMemoryLedger room([](uint64_t enough_bytes) { return ReadHostMemory({}, enough_bytes); });
  return room;
}

Status HostMemoryLedger::Check(uint64_t bytes, uint64_t kept_bytes) const {
  // What cannot be told, as no descriptor is left for reading it, say, is the kernel's to refuse.
  const Result<HostMemory> told = read_(bytes + kept_bytes);
  if (!told.ok() || told->available_bytes >= bytes + kept_bytes) return OkStatus();
  const HostMemory& memory = *told;
  return ResourceExhausted(
      "the host has not the memory: of what " + memory.available_by + " allows, " +
      ExactByteSize(memory.available_bytes) + " are left, where feeds have yet to take " +
      ExactByteSize(bytes) + " and " + ByteSize(kept_bytes) +
      " are kept for the daemon itself; use smaller batches or fewer slots, close a feed, or have the "
      "operator give the daemon more memory or a smaller pool_bytes");
}

Result<HostMemoryLedger::Reservation> HostMemoryLedger::Ask(uint64_t bytes) {
  Reservation promise(this, bytes);  // counted from now on, so that two who ask at once see each other
  RETURN_IF_ERROR(Check(reserved_ += bytes, kKeptBytes));
  return promise;
}

HostMemoryLedger::Reservation::~Reservation() {
  room_->taking_ -= taking_;
  room_->reserved_ -= left_;
}

Status HostMemoryLedger::Reservation::Begin(uint64_t bytes) {
  Status there = room_->Check(room_->taking_ += bytes, kKeptBytes / 2);
  if (there.ok()) {
    taking_ += bytes;
  } else {
    room_->taking_ -= bytes;
  }
  return there;
}

void HostMemoryLedger::Reservation::End(uint64_t bytes) {
  taking_ -= bytes;
  room_->taking_ -= bytes;
  left_ -= bytes;
  room_->reserved_ -= bytes;
}

}  // namespace pinfeed
