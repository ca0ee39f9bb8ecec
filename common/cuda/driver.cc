// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>

namespace pinfeed {
namespace {

// The first version with memory descriptors and version 2 of stream writes, which this project requires.
constexpr int kOldestDriver = 11070;

#define PF_CUDA_TEXT(name) #name
#define PF_CUDA_SYMBOL(name) PF_CUDA_TEXT(name)

Status Resolve(void* library, CudaDriver& driver) {
#define PF_CUDA_RESOLVE(name)                                                                    \
  driver.name = reinterpret_cast<decltype(driver.name)>(::dlsym(library, PF_CUDA_SYMBOL(name))); \
  if (driver.name == nullptr)                                                                    \
    return Unavailable(                                                                          \
        "libcuda.so.1 has no " PF_CUDA_SYMBOL(name) "; install a driver for CUDA 11.7 or later");
  PF_CUDA_FUNCTIONS(PF_CUDA_RESOLVE)
#undef PF_CUDA_RESOLVE
  return OkStatus();
}

const CudaDriver* loaded = nullptr;  // set once, before another thread can need an error name

Result<const CudaDriver*> LoadOnce() {
  // Never closed, because the driver has its own threads.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return Unavailable(std::string("no CUDA driver: ") +
                       (reason != nullptr ? reason : "libcuda.so.1 cannot be loaded"));
  }
  static CudaDriver driver;
  RETURN_IF_ERROR(Resolve(library, driver));
  loaded = &driver;
  if (const CUresult result = driver.cuInit(0); result != CUDA_SUCCESS)
    return Unavailable(CudaStatus(result, "initialise the CUDA driver").message());
  int version = 0;
  RETURN_IF_ERROR(CudaStatus(driver.cuDriverGetVersion(&version), "read the CUDA driver's version"));
  if (version < kOldestDriver) {
    return Unavailable("the CUDA driver has version " + std::to_string(version / 1000) + "." +
                       std::to_string(version % 1000 / 10) + "; 11.7 or later is needed");
  }
  return &driver;
}

}  // namespace

Result<const CudaDriver*> CudaDriver::Load() {
  static const Result<const CudaDriver*> result = LoadOnce();
  return result;
}

Status CudaStatus(CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (loaded == nullptr || loaded->cuGetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
  if (loaded == nullptr || loaded->cuGetErrorString(result, &text) != CUDA_SUCCESS) text = nullptr;
  const std::string message =
      what + ": " + (name != nullptr ? name : "CUDA error " + std::to_string(static_cast<int>(result))) +
      (text != nullptr ? " (" + std::string(text) + ")" : "");
  const Code code = result == CUDA_ERROR_OUT_OF_MEMORY   ? Code::kResourceExhausted
                    : result == CUDA_ERROR_DEINITIALIZED ? Code::kCancelled
                                                         : Code::kInternal;
  return {code, message, static_cast<int>(result)};
}

bool IsStickyCudaError(CUresult result) {
  // Defined only in headers newer than the oldest supported: CUDA_ERROR_CONTAINED,
  // CUDA_ERROR_TENSOR_MEMORY_LEAK, CUDA_ERROR_MPS_CLIENT_TERMINATED, CUDA_ERROR_EXTERNAL_DEVICE.
  constexpr int kNewerErrors[] = {226, 721, 810, 911};
  if (std::find(std::begin(kNewerErrors), std::end(kNewerErrors), static_cast<int>(result)) !=
      std::end(kNewerErrors))
    return true;
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_UNKNOWN:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_DEINITIALIZED:
      return true;
    default:
      return false;
  }
}

}  // namespace pinfeed
