// SPDX-License-Identifier: Apache-2.0
// Memory that is made and mapped in one (cuMemAlloc), and its handles of 64 bytes for other processes of the
// user. A handle names its maker's descriptor, which is opened through /proc.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/support/stand_in_cuda/memory.h"

namespace pinfeed::stand_in {
namespace {

// What lies in a CUipcMemHandle. The name guards against a descriptor that has become another.
struct IpcHandle {
  uint32_t pid;
  int32_t fd;
  char name[56];
};
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle));

// After the prefix that all names share, which would not fit.
std::string ShortNameOf(int fd) {
  const std::string name = NameOf(fd);
  return name.substr(std::min<size_t>(name.size(), sizeof "/memfd:pinfeed-" - 1));
}

// Maps it anew, for reading and writing.
CUresult Map(const std::shared_ptr<Allocation>& memory, uint64_t bytes, Origin origin, uint64_t& address) {
  address = ReserveSpace(memory->bytes, kGranularity);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!FillSpace(address, memory->bytes, *memory, Rights::kReadWrite)) {
    ReturnSpace(address, memory->bytes);
    return CUDA_ERROR_MAP_FAILED;
  }
  Region region;
  region.bytes = bytes;
  region.origin = origin;
  region.rights = Rights::kReadWrite;
  region.memory = memory;
  const MutexLock lock(g_state.mutex);
  g_state.regions[address] = std::move(region);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  PF_STAND_IN_CONTEXT_CALL(cuMemAlloc);
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > g_state.device_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  std::shared_ptr<Allocation> memory;
  if (const CUresult wrong = MakeMemory(*DeviceOf(context->device), RoundUp(bytes), false, memory);
      wrong != CUDA_SUCCESS)
    return wrong;
  uint64_t mapped = 0;
  const CUresult result = Map(memory, bytes, Origin::kAllocated, mapped);
  if (result == CUDA_SUCCESS) *address = mapped;
  return result;
}

CUresult cuMemFree(CUdeviceptr address) {
  PF_STAND_IN_CONTEXT_CALL(cuMemFree);
  const MutexLock lock(g_state.mutex);
  const auto found = g_state.regions.find(address);
  if (found == g_state.regions.end() || found->second.origin != Origin::kAllocated)
    return CUDA_ERROR_INVALID_VALUE;
  ReturnSpace(address, found->second.memory->bytes);
  g_state.regions.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  PF_STAND_IN_CONTEXT_CALL(cuMemGetInfo);
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *total = g_state.device_bytes;
  *free = *total - DeviceOf(context->device)->used_bytes;
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  PF_STAND_IN_CONTEXT_CALL(cuIpcGetMemHandle);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MutexLock lock(g_state.mutex);
  const auto found = Holding(g_state.regions, address, 1);
  if (found == g_state.regions.end() || found->second.origin != Origin::kAllocated)
    return CUDA_ERROR_INVALID_VALUE;
  IpcHandle content{};
  content.pid = static_cast<uint32_t>(::getpid());
  content.fd = found->second.memory->memfd.get();
  const std::string name = ShortNameOf(content.fd);
  if (name.empty() || name.size() >= sizeof content.name) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(content.name, name.data(), name.size());
  std::memcpy(handle, &content, sizeof content);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  PF_STAND_IN_CONTEXT_CALL(cuIpcOpenMemHandle);
  if (address == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  IpcHandle content{};
  std::memcpy(&content, &handle, sizeof content);
  const std::string name(content.name, ::strnlen(content.name, sizeof content.name));
  if (name.empty()) return CUDA_ERROR_INVALID_HANDLE;
  if (content.pid == static_cast<uint32_t>(::getpid())) return CUDA_ERROR_INVALID_CONTEXT;
  // No GPU of the stand-in reaches another one's memory.
  const std::string own = "stand-in-" + std::to_string(DeviceOf(context->device)->physical) + "-";
  if (name.compare(0, own.size(), own) != 0) return CUDA_ERROR_INVALID_DEVICE;
  {
    const MutexLock lock(g_state.mutex);
    for (auto& [mapped, region] : g_state.regions) {
      if (region.opened_name != name) continue;
      ++region.opens;
      *address = mapped;
      return CUDA_SUCCESS;
    }
  }
  std::array<char, 48> path{};
  std::snprintf(path.data(), path.size(), "/proc/%u/fd/%d", content.pid, content.fd);
  const UniqueFd fd(::open(path.data(), O_RDWR | O_CLOEXEC));
  if (!fd || ShortNameOf(fd.get()) != name) return CUDA_ERROR_MAP_FAILED;
  std::shared_ptr<Allocation> memory;
  if (const CUresult wrong = AdoptMemory(fd.get(), memory); wrong != CUDA_SUCCESS) return wrong;
  uint64_t mapped = 0;
  if (const CUresult wrong = Map(memory, memory->bytes, Origin::kOpened, mapped); wrong != CUDA_SUCCESS)
    return wrong;
  const MutexLock lock(g_state.mutex);
  g_state.regions[mapped].opened_name = name;
  g_state.regions[mapped].opens = 1;
  *address = mapped;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  PF_STAND_IN_CONTEXT_CALL(cuIpcCloseMemHandle);
  const MutexLock lock(g_state.mutex);
  const auto found = g_state.regions.find(address);
  if (found == g_state.regions.end() || found->second.origin != Origin::kOpened)
    return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.opens > 0) return CUDA_SUCCESS;
  ReturnSpace(address, found->second.memory->bytes);
  g_state.regions.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
