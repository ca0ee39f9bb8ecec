// SPDX-License-Identifier: Apache-2.0
// What streams do beside kernels: copies and single words. Host memory that they may reach.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "tests/support/stand_in_cuda/stand_in.h"

namespace pinfeed::stand_in {
namespace {

// Whether something is mapped at every page: what pinning would need.
bool IsMapped(uint64_t address, uint64_t bytes) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t from = address / page * page;
  const uint64_t length = address - from + bytes;
  std::vector<unsigned char> pages((length + page - 1) / page);
  return ::mincore(PointerTo(from), length, pages.data()) == 0;
}

// Runs it behind the context's own queue, and waits.
CUresult RunNow(CUctx_st& context, CUstream_st::Work work) {
  const auto stream = StreamOf(context, nullptr);
  stream->Wait(stream->Push(std::move(work)));
  return context.error;
}

}  // namespace

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  PF_STAND_IN_CONTEXT_CALL(cuMemcpyHtoD);
  if (from == nullptr || !IsDeviceMemory(to, bytes, Rights::kReadWrite)) return CUDA_ERROR_INVALID_VALUE;
  return RunNow(*context, [=] {
    std::memcpy(PointerTo(to), from, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  PF_STAND_IN_CONTEXT_CALL(cuMemcpyDtoH);
  if (to == nullptr || !IsDeviceMemory(from, bytes, Rights::kRead)) return CUDA_ERROR_INVALID_VALUE;
  return RunNow(*context, [=] {
    std::memcpy(to, PointerTo(from), bytes);
    return CUDA_SUCCESS;
  });
}

// The driver also takes pageable memory, and then waits for it: that would be a fault of ours, but for a
// program that measures it (PINFEED_STAND_IN_PAGEABLE).
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream handle) {
  PF_STAND_IN_CONTEXT_CALL(cuMemcpyHtoDAsync);
  const auto stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const bool registered = IsRegisteredHost(AddressOf(from), bytes);
  const bool pageable = !registered && g_state.takes_pageable;
  if (++g_state.copies == g_state.stalled_copy) {
    stream->Push([]() -> CUresult {
      while (true) ::pause();
    });
  }
  const uint64_t number = stream->Push([=] {
    if (!IsDeviceMemory(to, bytes, Rights::kReadWrite) ||
        !(pageable || IsRegisteredHost(AddressOf(from), bytes)))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::memcpy(PointerTo(to), from, bytes);
    return CUDA_SUCCESS;
  });
  if (pageable) stream->Wait(number);
  return CUDA_SUCCESS;
}

// To pageable memory: the driver waits for it.
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream handle) {
  PF_STAND_IN_CONTEXT_CALL(cuMemcpyDtoHAsync);
  const auto stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->Wait(stream->Push([=] {
    if (!IsDeviceMemory(from, bytes, Rights::kRead)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::memcpy(to, PointerTo(from), bytes);
    return CUDA_SUCCESS;
  }));
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  PF_STAND_IN_CONTEXT_CALL(cuMemcpyDtoDAsync);
  const auto stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUdevice device = context->device;
  stream->Push([=] {
    if (!IsReachableFrom(device, to, bytes, Rights::kReadWrite) ||
        !IsReachableFrom(device, from, bytes, Rights::kRead))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::memmove(PointerTo(to), PointerTo(from), bytes);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle) {
  PF_STAND_IN_CONTEXT_CALL(cuMemsetD8Async);
  const auto stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->Push([=] {
    if (!IsDeviceMemory(to, bytes, Rights::kReadWrite)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::memset(PointerTo(to), value, bytes);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

// By default the write comes after all that was queued before is visible to everyone.
CUresult cuStreamWriteValue64(CUstream handle, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  PF_STAND_IN_CONTEXT_CALL(cuStreamWriteValue64);
  const auto stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || address % sizeof value != 0 ||
      !IsReachable(address, sizeof value, Rights::kReadWrite))
    return CUDA_ERROR_INVALID_VALUE;
  stream->Push([=] {
    if (!IsReachable(address, sizeof value, Rights::kReadWrite))
      return CUDA_ERROR_ILLEGAL_ADDRESS;  // not any more
    std::atomic_ref(*static_cast<cuuint64_t*>(PointerTo(address))).store(value, std::memory_order_seq_cst);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

// Registered memory is every context's: CU_MEMHOSTREGISTER_PORTABLE makes no difference.
CUresult cuMemHostRegister(void* memory, size_t bytes, unsigned int flags) {
  PF_STAND_IN_CONTEXT_CALL(cuMemHostRegister);
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const uint64_t address = AddressOf(memory);
  if ((flags & ~kKnown) != 0 || bytes == 0 || bytes > UINT64_MAX - address || !IsMapped(address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const MutexLock lock(g_state.mutex);
  if (Overlaps(g_state.registered, address, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  g_state.registered[address] = {bytes};
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* memory) {
  PF_STAND_IN_CONTEXT_CALL(cuMemHostUnregister);
  const MutexLock lock(g_state.mutex);
  return g_state.registered.erase(AddressOf(memory)) == 1 ? CUDA_SUCCESS
                                                          : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* memory, unsigned int flags) {
  PF_STAND_IN_CONTEXT_CALL(cuMemHostGetDevicePointer);
  if (address == nullptr || flags != 0 || !IsRegisteredHost(AddressOf(memory), 1))
    return CUDA_ERROR_INVALID_VALUE;
  *address = AddressOf(memory);
  return CUDA_SUCCESS;
}

// Of what is no registered memory it says nothing, as the driver does of memory that is not its own.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr pointer) {
  PF_STAND_IN_CONTEXT_CALL(cuPointerGetAttributes);
  if (attributes == nullptr || values == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MutexLock lock(g_state.mutex);
  const auto found = Holding(g_state.registered, pointer, 1);
  const bool known = found != g_state.registered.end();
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(values[i]) = known ? CU_MEMORYTYPE_HOST : 0;
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<CUdeviceptr*>(values[i]) = known ? found->first : 0;
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *static_cast<size_t*>(values[i]) = known ? found->second.bytes : 0;
        break;
      default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
