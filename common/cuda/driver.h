// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, loaded at run time: programs of this project start on machines without one. Only types and
// names come from cuda.h; no CUDA library is linked.
#pragma once

#include <cuda.h>

#include <string>

#include "common/base/result.h"

// Every function used. cuda.h renames some to their current version (cuMemAlloc is cuMemAlloc_v2): the list
// goes through its macros, so that member, symbol and call are one name.
#define PF_CUDA_FUNCTIONS(F)        \
  F(cuInit)                         \
  F(cuDriverGetVersion)             \
  F(cuGetErrorName)                 \
  F(cuGetErrorString)               \
  F(cuDeviceGetCount)               \
  F(cuDeviceGet)                    \
  F(cuDeviceGetName)                \
  F(cuDeviceGetUuid)                \
  F(cuDeviceGetAttribute)           \
  F(cuDeviceGetPCIBusId)            \
  F(cuDeviceTotalMem)               \
  F(cuDeviceCanAccessPeer)          \
  F(cuDevicePrimaryCtxRetain)       \
  F(cuDevicePrimaryCtxRelease)      \
  F(cuCtxPushCurrent)               \
  F(cuCtxPopCurrent)                \
  F(cuCtxSetLimit)                  \
  F(cuCtxGetStreamPriorityRange)    \
  F(cuStreamCreateWithPriority)     \
  F(cuStreamDestroy)                \
  F(cuStreamQuery)                  \
  F(cuStreamSynchronize)            \
  F(cuStreamWriteValue64)           \
  F(cuEventCreate)                  \
  F(cuEventDestroy)                 \
  F(cuEventRecord)                  \
  F(cuEventQuery)                   \
  F(cuMemAlloc)                     \
  F(cuMemFree)                      \
  F(cuMemGetInfo)                   \
  F(cuMemcpyHtoD)                   \
  F(cuMemcpyDtoH)                   \
  F(cuMemcpyHtoDAsync)              \
  F(cuMemcpyDtoDAsync)              \
  F(cuMemHostRegister)              \
  F(cuMemHostUnregister)            \
  F(cuMemHostGetDevicePointer)      \
  F(cuMemGetAllocationGranularity)  \
  F(cuMemCreate)                    \
  F(cuMemRelease)                   \
  F(cuMemExportToShareableHandle)   \
  F(cuMemImportFromShareableHandle) \
  F(cuMemAddressReserve)            \
  F(cuMemAddressFree)               \
  F(cuMemMap)                       \
  F(cuMemUnmap)                     \
  F(cuMemSetAccess)                 \
  F(cuIpcGetMemHandle)              \
  F(cuIpcOpenMemHandle)             \
  F(cuIpcCloseMemHandle)            \
  F(cuModuleLoadData)               \
  F(cuModuleGetFunction)            \
  F(cuLaunchKernel)

namespace pinfeed {

// Purpose: the driver's functions. A process-wide constant. Threads: any.
struct CudaDriver {
#define PF_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  PF_CUDA_FUNCTIONS(PF_CUDA_MEMBER)
#undef PF_CUDA_MEMBER

  // Loads libcuda.so.1 and initialises it, once a process; the result of the first call is given to all.
  // kUnavailable says why there is none: no library, too old a one, no device. It stays loaded.
  static Result<const CudaDriver*> Load();
};

// OK, or kInternal (kResourceExhausted when memory is what lacks, kCancelled when the driver has shut down
// with the process): "<what>: CUDA_ERROR_X (text)", with the native error. `what` names what was tried, on
// what. Any thread; needs a loaded driver for the name of an error.
Status CudaStatus(CUresult result, const std::string& what);

// True for errors after which the context is of no more use: every later call fails too.
bool IsStickyCudaError(CUresult result);

}  // namespace pinfeed
