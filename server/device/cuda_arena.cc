// SPDX-License-Identifier: Apache-2.0
#include "server/device/cuda_arena.h"

#include <sys/random.h>

#include <cerrno>
#include <string>
#include <utility>

#include "common/shared_page.h"

namespace pinfeed {
namespace {

Status WriteId(const CudaDevice& device, const DeviceMemory& memory, uint64_t offset, const ArenaId& id) {
  const CudaScope scope(device);
  RETURN_IF_ERROR(scope.status());
  return CudaStatus(device.driver().cuMemcpyHtoD(memory.address() + offset, id.data(), id.size()),
                    "write the arena's id on GPU " + device.uuid());
}

}  // namespace

Result<std::unique_ptr<CudaArena>> CudaArena::Create(const std::shared_ptr<const CudaDevice>& device,
                                                     const BatchLayout& layout, uint32_t slot_count,
                                                     PinnedRegion& region, PinnedPool& device_pool,
                                                     CopyEngine& engine) {
  if (slot_count < kMinSlots || slot_count > kMaxSlots) {
    return InvalidArgument("slots: " + std::to_string(slot_count) + " is not within " +
                           std::to_string(kMinSlots) + " to " + std::to_string(kMaxSlots));
  }
  uint64_t slots = 0;
  uint64_t bytes = 0;
  if (!CheckedMul(layout.slot_stride, slot_count, &slots) || !CheckedAdd(slots, kArenaTailBytes, &bytes))
    return InvalidArgument("an arena of " + std::to_string(slot_count) + " slots is too large to be counted");
  Result<PoolLease> lease = device_pool.Reserve(bytes);
  if (!lease.ok()) return lease.status().WithContext("gpu_bytes: memory of GPU " + device->uuid());
  std::vector<PinnedBlock> staging;
  for (uint32_t slot = 0; slot < slot_count; ++slot) {
    ASSIGN_OR_RETURN(PinnedBlock block, region.Take(layout.slot_stride));
    staging.push_back(std::move(block));
  }
  ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Create(device, bytes));
  ASSIGN_OR_RETURN(UniqueFd fd, memory.Export());
  ArenaId id;
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size()))
    return ErrnoStatus("draw an arena's id", errno);
  RETURN_IF_ERROR(WriteId(*device, memory, slots, id));
  return std::unique_ptr<CudaArena>(new CudaArena(id, slot_count, layout.slot_stride, *std::move(lease),
                                                  std::move(memory), std::move(fd), std::move(staging),
                                                  engine));
}

void CudaArena::Deliver(uint32_t slot, uint64_t bytes, Done done) {
  lane_.Submit({staging_[slot].data(), memory_.address() + slot * slot_stride(), bytes, std::move(done)});
}

}  // namespace pinfeed
