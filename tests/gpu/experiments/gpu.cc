// SPDX-License-Identifier: Apache-2.0
#include "gpu.h"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

namespace pinfeed {
namespace {

std::string kernel_image;

// nvml.h comes with a package of its own; these are the parts of its binary interface used here.
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

template <typename Function>
Function Find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) Fail(__FILE__, __LINE__, "find a function of NVML", name);
  return reinterpret_cast<Function>(found);
}

void CheckNvml(int result, const char* call) {
  if (result != 0) Fail(__FILE__, __LINE__, call, "NVML error " + std::to_string(result));
}

CUmemAllocationProp AllocationKind(CUdevice device) {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind.location.id = device;
  kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return kind;
}

CUresult MapAllocation(const Gpu& gpu, bool read_only, Arena* arena) {
  CUresult result = cuMemAddressReserve(&arena->address, arena->bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  result = cuMemMap(arena->address, arena->bytes, 0, arena->allocation, 0);
  if (result != CUDA_SUCCESS) return result;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu.device;
  access.flags = read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return cuMemSetAccess(arena->address, arena->bytes, &access, 1);
}

}  // namespace

void LoadKernelImage() {
  const char* path = std::getenv("KERNELS");
  if (path == nullptr)
    Fail(__FILE__, __LINE__, "load the kernels", "KERNELS names no file; start the programs by run.sh");
  std::ifstream file(path, std::ios::binary);
  kernel_image.assign(std::istreambuf_iterator<char>(file), {});
  if (kernel_image.empty()) Fail(__FILE__, __LINE__, "read the kernels", path);
}

Gpu::Gpu() {
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&second_stream, CU_STREAM_NON_BLOCKING));
  CUmodule module = nullptr;
  CU(cuModuleLoadData(&module, kernel_image.data()));
  CU(cuModuleGetFunction(&fill, module, "Fill"));
  CU(cuModuleGetFunction(&count_wrong, module, "CountWrong"));
  CU(cuModuleGetFunction(&spin, module, "Spin"));
  CU(cuModuleGetFunction(&burn, module, "Burn"));
}

Arena ExportArena(const Gpu& gpu, Backend backend, std::size_t bytes, Offer* offer, int* fd) {
  Arena arena;
  arena.backend = backend;
  arena.bytes = bytes;
  *offer = {backend, bytes, {}};
  *fd = -1;
  if (backend == Backend::kLegacy) {
    CU(cuMemAlloc(&arena.address, bytes));
    CU(cuIpcGetMemHandle(&offer->legacy, arena.address));
    return arena;
  }
  CUmemAllocationProp kind = AllocationKind(gpu.device);
  CU(cuMemCreate(&arena.allocation, bytes, &kind, 0));
  CU(cuMemExportToShareableHandle(fd, arena.allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CU(MapAllocation(gpu, false, &arena));
  return arena;
}

CUresult ImportArena(const Gpu& gpu, const Offer& offer, int fd, bool read_only, Arena* arena) {
  *arena = {};
  arena->backend = offer.backend;
  arena->imported = true;
  arena->bytes = offer.bytes;
  if (offer.backend == Backend::kLegacy) {
    return cuIpcOpenMemHandle(&arena->address, offer.legacy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  CUresult result =
      cuMemImportFromShareableHandle(&arena->allocation, reinterpret_cast<void*>(std::uintptr_t(fd)),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) return result;
  return MapAllocation(gpu, read_only, arena);
}

CUresult DropArena(Arena* arena) {
  Arena gone = *arena;
  *arena = {};
  if (gone.backend == Backend::kLegacy) {
    return gone.imported ? cuIpcCloseMemHandle(gone.address) : cuMemFree(gone.address);
  }
  CUresult result = cuMemUnmap(gone.address, gone.bytes);
  if (result != CUDA_SUCCESS) return result;
  result = cuMemAddressFree(gone.address, gone.bytes);
  if (result != CUDA_SUCCESS) return result;
  return cuMemRelease(gone.allocation);
}

Nvml::Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
  if (library_ == nullptr) Fail(__FILE__, __LINE__, "load NVML", dlerror());
  CheckNvml(Find<int (*)()>(library_, "nvmlInit_v2")(), "nvmlInit_v2");
  CheckNvml(Find<int (*)(unsigned, void**)>(library_, "nvmlDeviceGetHandleByIndex_v2")(0, &device_),
            "find the device in NVML");
}

std::uint64_t Nvml::UsedBytes() const {
  NvmlMemory memory{};
  CheckNvml(Find<int (*)(void*, NvmlMemory*)>(library_, "nvmlDeviceGetMemoryInfo")(device_, &memory),
            "nvmlDeviceGetMemoryInfo");
  return memory.used;
}

bool Nvml::Lists(int pid, std::uint64_t* bytes) const {
  std::vector<NvmlProcess> processes(256);
  auto count = unsigned(processes.size());
  CheckNvml(Find<int (*)(void*, unsigned*, NvmlProcess*)>(
                library_, "nvmlDeviceGetComputeRunningProcesses_v3")(device_, &count, processes.data()),
            "nvmlDeviceGetComputeRunningProcesses_v3");
  for (unsigned i = 0; i < count; ++i) {
    if (int(processes[i].pid) != pid) continue;
    if (bytes != nullptr) *bytes = processes[i].used_bytes;
    return true;
  }
  return false;
}

}  // namespace pinfeed
