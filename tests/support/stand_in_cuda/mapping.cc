// SPDX-License-Identifier: Apache-2.0
// Memory that is made, passed on as a descriptor and mapped in separate steps (cuMemCreate and its kin). None
// of them needs a context.
#include <fcntl.h>

#include <bit>
#include <utility>
#include <vector>

#include "tests/support/stand_in_cuda/memory.h"

namespace pinfeed::stand_in {
namespace {

bool IsWhole(uint64_t number) {
  return number != 0 && number % kGranularity == 0;
}

CUresult Check(const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return DeviceOf(properties->location.id) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// The mappings that fill [address, address + bytes) exactly; none when they do not.
std::vector<std::map<uint64_t, Region>::iterator> MappingsOf(uint64_t address, uint64_t bytes)
    PF_REQUIRES(g_state.mutex) {
  std::vector<std::map<uint64_t, Region>::iterator> mappings;
  while (bytes > 0) {
    const auto found = g_state.regions.find(address);
    if (found == g_state.regions.end() || found->second.origin != Origin::kMapped ||
        found->second.bytes > bytes)
      return {};
    mappings.push_back(found);
    address += found->second.bytes;
    bytes -= found->second.bytes;
  }
  return mappings;
}

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags /*option*/) {
  PF_STAND_IN_CALL(cuMemGetAllocationGranularity);
  if (granularity == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult wrong = Check(properties); wrong != CUDA_SUCCESS) return wrong;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  PF_STAND_IN_CALL(cuMemCreate);
  if (const CUresult wrong = Check(properties); wrong != CUDA_SUCCESS) return wrong;
  if (handle == nullptr || flags != 0 || !IsWhole(bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Allocation> memory;
  const bool exportable = properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (const CUresult wrong = MakeMemory(*DeviceOf(properties->location.id), bytes, exportable, memory);
      wrong != CUDA_SUCCESS)
    return wrong;
  const MutexLock lock(g_state.mutex);
  *handle = g_state.next_allocation++;
  g_state.allocations[*handle] = std::move(memory);
  return CUDA_SUCCESS;
}

// Mappings keep the memory.
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  PF_STAND_IN_CALL(cuMemRelease);
  const MutexLock lock(g_state.mutex);
  return g_state.allocations.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void* descriptor, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  PF_STAND_IN_CALL(cuMemExportToShareableHandle);
  if (descriptor == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  const MutexLock lock(g_state.mutex);
  const auto found = g_state.allocations.find(handle);
  if (found == g_state.allocations.end() || !found->second->exportable) return CUDA_ERROR_INVALID_VALUE;
  UniqueFd copy(::fcntl(found->second->memfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(descriptor) = copy.release();
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* descriptor,
                                        CUmemAllocationHandleType type) {
  PF_STAND_IN_CALL(cuMemImportFromShareableHandle);
  if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Allocation> memory;
  const auto fd = static_cast<int>(AddressOf(descriptor));
  if (const CUresult wrong = AdoptMemory(fd, memory); wrong != CUDA_SUCCESS) return wrong;
  const MutexLock lock(g_state.mutex);
  *handle = g_state.next_allocation++;
  g_state.allocations[*handle] = std::move(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr /*wish*/,
                             unsigned long long flags) {
  PF_STAND_IN_CALL(cuMemAddressReserve);
  if (address == nullptr || flags != 0 || !IsWhole(bytes) ||
      (alignment != 0 && !std::has_single_bit(alignment)))
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t space = ReserveSpace(bytes, std::max<uint64_t>(alignment, kGranularity));
  if (space == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const MutexLock lock(g_state.mutex);
  g_state.reserved[space] = {bytes};
  *address = space;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  PF_STAND_IN_CALL(cuMemAddressFree);
  const MutexLock lock(g_state.mutex);
  const auto found = g_state.reserved.find(address);
  if (found == g_state.reserved.end() || found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  if (Overlaps(g_state.regions, address, bytes)) return CUDA_ERROR_INVALID_VALUE;  // still mapped
  g_state.reserved.erase(found);
  ReturnSpace(address, bytes);
  return CUDA_SUCCESS;
}

// Only the whole of a piece of memory: nothing here maps less.
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  PF_STAND_IN_CALL(cuMemMap);
  const MutexLock lock(g_state.mutex);
  const auto memory = g_state.allocations.find(handle);
  if (flags != 0 || offset != 0 || memory == g_state.allocations.end() || memory->second->bytes != bytes ||
      address % kGranularity != 0 || Holding(g_state.reserved, address, bytes) == g_state.reserved.end() ||
      Overlaps(g_state.regions, address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  Region region;
  region.bytes = bytes;
  region.memory = memory->second;
  g_state.regions[address] = std::move(region);
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  PF_STAND_IN_CALL(cuMemUnmap);
  const MutexLock lock(g_state.mutex);
  const auto mappings = MappingsOf(address, bytes);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& mapping : mappings) {
    if (!FillSpace(mapping->first, mapping->second.bytes, *mapping->second.memory, Rights::kNone))
      return CUDA_ERROR_OPERATING_SYSTEM;
    g_state.regions.erase(mapping);
  }
  return CUDA_SUCCESS;
}

// Of the GPUs named; those of others stay.
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* wishes, size_t count) {
  PF_STAND_IN_CALL(cuMemSetAccess);
  if (wishes == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::map<CUdevice, Rights> wished;
  for (size_t i = 0; i < count; ++i) {
    if (wishes[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (DeviceOf(wishes[i].location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    Rights& rights = wished[wishes[i].location.id];
    if (wishes[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      rights = Rights::kReadWrite;
    } else if (wishes[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ) {
      rights = Rights::kRead;
    } else if (wishes[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
      rights = Rights::kNone;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const MutexLock lock(g_state.mutex);
  const auto mappings = MappingsOf(address, bytes);
  if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& mapping : mappings) {
    Region& region = mapping->second;
    for (const auto& [device, rights] : wished) region.by_device[device] = rights;
    Rights widest = Rights::kNone;
    for (const auto& [device, rights] : region.by_device) widest = std::max(widest, rights);
    if (!FillSpace(mapping->first, region.bytes, *region.memory, widest)) return CUDA_ERROR_MAP_FAILED;
    region.rights = widest;
  }
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
