// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/cuda_arena.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "common/base/random.h"
#include "common/wire/shared_page.h"

namespace pinfeed {
namespace {

Status WriteId(const CudaDevice& device, const DeviceMemory& memory, uint64_t offset, const ArenaId& id) {
  ASSIGN_OR_RETURN(const CudaScope scope, device.Enter());
  const std::string what = "write the arena's id on GPU " + device.uuid();
  RETURN_IF_ERROR(
      CudaStatus(device.driver().cuMemcpyHtoD(memory.address() + offset, id.data(), id.size()), what));
  // Copies from pageable memory, this one and those that clear the slots, may return before they are
  // complete, and the copy streams do not wait for them.
  return CudaStatus(device.driver().cuStreamSynchronize(nullptr), what);
}

}  // namespace

Result<std::unique_ptr<CudaArena>> CudaArena::Create(const std::shared_ptr<const CudaDevice>& device,
                                                     Backend backend, const BatchLayout& layout,
                                                     uint32_t slot_count, Staging staging,
                                                     const Parts& parts) {
  if (slot_count == 0 || slot_count > kMaxSlots) {
    return InvalidArgument("slots: " + std::to_string(slot_count) + " is not within 1 to " +
                           std::to_string(kMaxSlots));
  }
  uint64_t slots = 0;
  uint64_t bytes = 0;
  if (!CheckedMul(layout.slot_stride, slot_count, &slots) || !CheckedAdd(slots, kArenaIdBytes, &bytes))
    return InvalidArgument("an arena of " + std::to_string(slot_count) + " slots is too large");
  ASSIGN_OR_RETURN(bytes, DeviceMemory::WholePages(*device, bytes));
  ASSIGN_OR_RETURN(
      BudgetLease lease,
      parts.device_pool.Reserve(bytes, parts.user).WithContext("gpu_bytes: memory of GPU " + device->uuid()));
  const auto id = RandomBytes<ArenaId>();
  std::unique_ptr<CudaArena> arena(new CudaArena(id, backend, slot_count, layout, std::move(lease), parts));
  if (staging == Staging::kPinned) {
    ASSIGN_OR_RETURN(arena->staging_,
                     StagingMemory::Create(parts.region, parts.cache, layout, slot_count, parts.user));
  }
  RETURN_IF_ERROR(arena->Allocate(device, bytes));
  RETURN_IF_ERROR(WriteId(*device, arena->memory_, slots, id));
  return arena;
}

Status CudaArena::Allocate(const std::shared_ptr<const CudaDevice>& device, uint64_t bytes) {
  if (backend_ == Backend::kCudaIpc) {
    ASSIGN_OR_RETURN(memory_, DeviceMemory::Allocate(device, bytes));
    ASSIGN_OR_RETURN(handle_, memory_.Handle());
  } else {
    ASSIGN_OR_RETURN(memory_, DeviceMemory::Create(device, bytes));
    ASSIGN_OR_RETURN(fd_, memory_.Export());
  }
  return ClearDevice(*device, bytes);
}

Status CudaArena::ClearDevice(const CudaDevice& device, uint64_t bytes) {
  // Copies zeros from pinned memory at the full speed of the link. A part without staging memory uses a
  // static buffer.
  static const std::array<std::byte, uint64_t{1} << 20> kZeros{};
  const std::span<const std::byte> zeros =
      staging_ == nullptr ? std::span<const std::byte>(kZeros) : staging_->Zeros();
  ASSIGN_OR_RETURN(const CudaScope scope, device.Enter());
  for (uint64_t at = 0; at < bytes; at += zeros.size()) {
    const uint64_t chunk = std::min<uint64_t>(zeros.size(), bytes - at);
    RETURN_IF_ERROR(CudaStatus(device.driver().cuMemcpyHtoD(memory_.address() + at, zeros.data(), chunk),
                               "clear new memory of GPU " + device.uuid()));
  }
  return OkStatus();
}

CudaArena::~CudaArena() {
  if (remaining_mappers_.empty()) return;
  // Memory behind a descriptor lives as long as any process maps it, so our mapping can be dropped now.
  if (backend_ == Backend::kVmmFd) {
    memory_ = DeviceMemory();
    fd_.reset();
  }
  quarantine_.Add(device().uuid(), backend_, std::move(memory_), std::move(lease_),
                  std::move(remaining_mappers_));
}

void CudaArena::Deliver(const Piece& piece, const SlotRange& range, Done done) {
  const std::vector<StagedCopy> copies = staging_->Copies(piece, range);
  if (copies.empty()) {
    staging_->Return(piece);
    return done(OkStatus(), {});
  }
  Fetch(piece.slot, copies,
        [this, piece, done = std::move(done)](const Status& status, const CopyTime& time) {
          staging_->Return(piece);
          done(status, time);
        });
}

void CudaArena::Fetch(uint32_t slot, const std::vector<StagedCopy>& copies, Done done) {
  CopyJob job;
  for (const StagedCopy& copy : copies)
    job.copies.push_back({copy.from, 0, Address(slot) + copy.offset, copy.bytes});
  job.done = std::move(done);
  lane_.Submit(std::move(job));
}

void CudaArena::FetchFrom(const CudaArena& peer, uint32_t slot, const std::vector<StagedCopy>& copies,
                          Done done) {
  CopyJob job;
  for (const StagedCopy& copy : copies)
    job.copies.push_back(
        {nullptr, peer.Address(slot) + copy.offset, Address(slot) + copy.offset, copy.bytes});
  job.done = std::move(done);
  peer_lane_->Submit(std::move(job));
}

Status CudaArena::AllowReads(const CudaDevice& reader) const {
  int possible = 0;
  const std::string what = "check whether GPU " + reader.uuid() + " can access GPU " + device().uuid();
  RETURN_IF_ERROR(
      CudaStatus(reader.driver().cuDeviceCanAccessPeer(&possible, reader.handle(), device().handle()), what));
  if (possible == 0) return Unavailable("there is no peer access between them");
  return memory_.AllowReads(reader);
}

Result<const Arena*> CudaArena::PartOn(const std::string& gpu_uuid) {
  if (gpu_uuid == device().uuid()) return this;
  return FailedPrecondition(
      "gpu_uuid: the group's batches are on GPU " + device().uuid() +
      "; only a broadcast group can use several GPUs, so this client must use that GPU as well");
}

}  // namespace pinfeed
