// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, loaded at run time, so that programs also start on machines without one. cuda.h provides
// only types and names; no CUDA library is linked.
#pragma once

#include <cuda.h>

#include <string>

#include "common/base/result.h"

// All functions in use. cuda.h maps some names to their current version (cuMemAlloc is cuMemAlloc_v2). The
// list uses its macros, so that member, symbol and call share one name.
#define PF_CUDA_FUNCTIONS(F)           \
  F(cuInit)                            \
  F(cuDriverGetVersion)                \
  F(cuGetErrorName)                    \
  F(cuGetErrorString)                  \
  F(cuDeviceGetCount)                  \
  F(cuDeviceGet)                       \
  F(cuDeviceGetName)                   \
  F(cuDeviceGetUuid)                   \
  F(cuDeviceGetAttribute)              \
  F(cuDeviceGetPCIBusId)               \
  F(cuDeviceTotalMem)                  \
  F(cuDeviceCanAccessPeer)             \
  F(cuDevicePrimaryCtxRetain)          \
  F(cuDevicePrimaryCtxRelease)         \
  F(cuCtxPushCurrent)                  \
  F(cuCtxPopCurrent)                   \
  F(cuCtxSetLimit)                     \
  F(cuCtxGetStreamPriorityRange)       \
  F(cuStreamCreateWithPriority)        \
  F(cuStreamDestroy)                   \
  F(cuStreamQuery)                     \
  F(cuStreamSynchronize)               \
  F(cuStreamWriteValue64)              \
  F(cuStreamIsCapturing)               \
  F(cuThreadExchangeStreamCaptureMode) \
  F(cuEventCreate)                     \
  F(cuEventDestroy)                    \
  F(cuEventRecord)                     \
  F(cuEventQuery)                      \
  F(cuEventSynchronize)                \
  F(cuMemAlloc)                        \
  F(cuMemFree)                         \
  F(cuMemGetInfo)                      \
  F(cuMemcpyHtoD)                      \
  F(cuMemcpyDtoH)                      \
  F(cuMemcpyHtoDAsync)                 \
  F(cuMemcpyDtoHAsync)                 \
  F(cuMemcpyDtoDAsync)                 \
  F(cuMemsetD8Async)                   \
  F(cuMemHostRegister)                 \
  F(cuMemHostUnregister)               \
  F(cuMemHostGetDevicePointer)         \
  F(cuPointerGetAttributes)            \
  F(cuMemGetAllocationGranularity)     \
  F(cuMemCreate)                       \
  F(cuMemRelease)                      \
  F(cuMemExportToShareableHandle)      \
  F(cuMemImportFromShareableHandle)    \
  F(cuMemAddressReserve)               \
  F(cuMemAddressFree)                  \
  F(cuMemMap)                          \
  F(cuMemUnmap)                        \
  F(cuMemSetAccess)                    \
  F(cuIpcGetMemHandle)                 \
  F(cuIpcOpenMemHandle)                \
  F(cuIpcCloseMemHandle)               \
  F(cuModuleLoadData)                  \
  F(cuModuleGetFunction)               \
  F(cuLaunchKernel)

namespace pinfeed {

// Purpose: the driver's functions. Constant for the whole process. Threads: any.
struct CudaDriver {
#define PF_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  PF_CUDA_FUNCTIONS(PF_CUDA_MEMBER)
#undef PF_CUDA_MEMBER

  // Loads and initialises libcuda.so.1 once per process. All calls return the result of the first.
  // kUnavailable says why there is no driver: no library, an old one, or no device. The library stays loaded.
  static Result<const CudaDriver*> Load();
};

// Returns OK or an error "<what>: CUDA_ERROR_X (text)" with the native error. The code is kResourceExhausted
// when memory is exhausted, kCancelled when the driver has shut down with the process, and otherwise
// kInternal. `what` names the operation and its object. Any thread. The error's name needs a loaded driver.
Status CudaStatus(CUresult result, const std::string& what);

// Whether the error leaves the context unusable, so that every later call fails as well.
bool IsStickyCudaError(CUresult result);

}  // namespace pinfeed
