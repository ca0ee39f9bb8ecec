// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/gpu_processes.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

namespace pinfeed {
namespace {

constexpr int kSuccess = 0;           // NVML_SUCCESS
constexpr int kInsufficientSize = 7;  // NVML_ERROR_INSUFFICIENT_SIZE
constexpr unsigned kInitialCapacity = 64;
constexpr int kMaxTries = 8;  // processes may start between two calls

// nvmlProcessInfo_t of versions 2 and 3 of the call. It is declared here because nvml.h is in a separate
// package. This part of the ABI has been stable since driver 460.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

struct GpuProcesses::Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error)(int) = nullptr;
  int (*device)(const char*, void**) = nullptr;
  int (*processes)(void*, unsigned*, ProcessInfo*) = nullptr;

  Status Fault(int result, const std::string& what) const {
    const char* const text = error(result);
    return Unavailable(what + ": NVML: " + (text != nullptr ? text : "error " + std::to_string(result)));
  }
};

GpuProcesses::GpuProcesses(std::unique_ptr<const Nvml> nvml) : nvml_(std::move(nvml)) {}

GpuProcesses::~GpuProcesses() {
  (void)nvml_->shutdown();  // reference-counted; an error cannot be handled
}

Result<std::unique_ptr<const GpuProcesses>> GpuProcesses::Load() {
  // Never closed, like the driver library itself.
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return Unavailable(std::string("no NVML: ") +
                       (reason != nullptr ? reason : "libnvidia-ml.so.1 cannot be loaded"));
  }
  auto nvml = std::make_unique<Nvml>();
  if (!Find(library, "nvmlInit_v2", nvml->init) || !Find(library, "nvmlShutdown", nvml->shutdown) ||
      !Find(library, "nvmlErrorString", nvml->error) ||
      !Find(library, "nvmlDeviceGetHandleByUUID", nvml->device) ||
      (!Find(library, "nvmlDeviceGetComputeRunningProcesses_v3", nvml->processes) &&
       !Find(library, "nvmlDeviceGetComputeRunningProcesses_v2", nvml->processes)))
    return Unavailable("libnvidia-ml.so.1 belongs to a driver older than 460");
  if (const int result = nvml->init(); result != kSuccess) return nvml->Fault(result, "initialise NVML");
  return std::unique_ptr<const GpuProcesses>(new GpuProcesses(std::move(nvml)));
}

Result<std::vector<pid_t>> GpuProcesses::On(const std::string& gpu_uuid) const {
  const std::string what = "list the processes on GPU " + gpu_uuid;
  void* device = nullptr;
  if (const int result = nvml_->device(gpu_uuid.c_str(), &device); result != kSuccess)
    return nvml_->Fault(result, what);
  std::vector<ProcessInfo> processes(kInitialCapacity);
  for (int i = 0; i < kMaxTries; ++i) {
    auto count = static_cast<unsigned>(processes.size());
    const int result = nvml_->processes(device, &count, processes.data());
    if (result == kSuccess) {
      std::vector<pid_t> pids;
      for (unsigned k = 0; k < count && k < processes.size(); ++k)
        pids.push_back(static_cast<pid_t>(processes[k].pid));
      return pids;
    }
    if (result != kInsufficientSize) return nvml_->Fault(result, what);
    processes.resize(std::max<size_t>(size_t{2} * count, 2 * processes.size()));
  }
  return Unavailable(what + ": their number kept growing");
}

}  // namespace pinfeed
