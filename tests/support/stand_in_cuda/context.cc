// SPDX-License-Identifier: Apache-2.0
// Contexts: which one a thread is in, whether it is sound; what a call is refused for. Names of errors.
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/stand_in_cuda/stand_in.h"

namespace pinfeed::stand_in {
namespace {

thread_local std::vector<CUctx_st*> current_contexts;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct ErrorText {
  CUresult result;
  const char* name;
  const char* text;
};
#define PF_STAND_IN_ERROR(name, text) \
  ErrorText {                         \
    name, #name, text                 \
  }
constexpr ErrorText kErrors[] = {
    PF_STAND_IN_ERROR(CUDA_SUCCESS, "no error"),
    PF_STAND_IN_ERROR(CUDA_ERROR_INVALID_VALUE, "an argument is not valid"),
    PF_STAND_IN_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "the memory does not suffice"),
    PF_STAND_IN_ERROR(CUDA_ERROR_NOT_INITIALIZED, "cuInit has not succeeded"),
    PF_STAND_IN_ERROR(CUDA_ERROR_DEINITIALIZED, "the driver is shutting down"),
    PF_STAND_IN_ERROR(CUDA_ERROR_NO_DEVICE, "there is no visible GPU"),
    PF_STAND_IN_ERROR(CUDA_ERROR_INVALID_DEVICE, "there is no GPU of that ordinal"),
    PF_STAND_IN_ERROR(CUDA_ERROR_INVALID_IMAGE, "not a device code image"),
    PF_STAND_IN_ERROR(CUDA_ERROR_INVALID_CONTEXT, "no context, or not one that this can be done in"),
    PF_STAND_IN_ERROR(CUDA_ERROR_MAP_FAILED, "the memory cannot be mapped"),
    PF_STAND_IN_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "an uncorrectable memory error"),
    PF_STAND_IN_ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "there is no such limit"),
    PF_STAND_IN_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "a system call failed"),
    PF_STAND_IN_ERROR(CUDA_ERROR_INVALID_HANDLE, "the handle names nothing that exists"),
    PF_STAND_IN_ERROR(CUDA_ERROR_NOT_FOUND, "the module has no function of that name"),
    PF_STAND_IN_ERROR(CUDA_ERROR_NOT_READY, "not finished yet"),
    PF_STAND_IN_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an access to memory that is not mapped so"),
    PF_STAND_IN_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "the block needs more than there is"),
    PF_STAND_IN_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context's last reference is gone"),
    PF_STAND_IN_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "some of the memory is registered already"),
    PF_STAND_IN_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "no registered memory begins there"),
    PF_STAND_IN_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "an access to a misaligned address"),
    PF_STAND_IN_ERROR(CUDA_ERROR_LAUNCH_FAILED, "the kernel failed"),
    PF_STAND_IN_ERROR(CUDA_ERROR_NOT_PERMITTED, "not permitted"),
    PF_STAND_IN_ERROR(CUDA_ERROR_NOT_SUPPORTED, "not supported"),
    PF_STAND_IN_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "another thread's capture forbids the call"),
    PF_STAND_IN_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const ErrorText* TextOf(CUresult result) {
  for (const ErrorText& error : kErrors) {
    if (error.result == result) return &error;
  }
  return nullptr;
}

// The failure that was asked for at this call, if any.
std::optional<Fault> TakeFault(const char* function) PF_REQUIRES(g_state.mutex) {
  std::optional<Fault> due;
  for (Fault& fault : g_state.faults) {
    if (fault.calls_left > 0 && fault.function == function && --fault.calls_left == 0) due = fault;
  }
  return due;
}

}  // namespace

// As the kernel's GPU files: a forked child has it too, a program that is executed has not.
UniqueFd MarkInUse(int physical) {
  const std::string name = kInUsePrefix + std::to_string(physical) + "-" + std::to_string(::getpid());
  return UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC));
}

CUresult Enter(const char* function) {
  std::optional<Fault> fault;
  {
    const MutexLock lock(g_state.mutex);
    if (!g_state.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (*g_state.initialised != CUDA_SUCCESS) return *g_state.initialised;
    fault = TakeFault(function);
  }
  if (!fault) return CUDA_SUCCESS;
  while (fault->hangs) ::pause();
  if (fault->result) return *fault->result;
  if (!current_contexts.empty()) current_contexts.back()->Break(CUDA_ERROR_UNKNOWN);
  return CUDA_ERROR_UNKNOWN;
}

CUresult EnterContext(const char* function, CUctx_st** context) {
  if (const CUresult refused = Enter(function); refused != CUDA_SUCCESS) return refused;
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = current_contexts.back();
  if ((*context)->references == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (g_state.captured_elsewhere && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    (*context)->Break(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return (*context)->error;
}

CUresult cuGetErrorName(CUresult result, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* const known = TextOf(result);
  *name = known != nullptr ? known->name : nullptr;
  return known != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* const known = TextOf(result);
  *text = known != nullptr ? known->text : nullptr;
  return known != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  PF_STAND_IN_CALL(cuDevicePrimaryCtxRetain);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Device* const known = DeviceOf(device);
  if (known == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  // A broken one stays broken, whoever holds it: the driver wants a new process.
  if (const CUresult broken = known->context.error; broken != CUDA_SUCCESS) return broken;
  {
    const MutexLock lock(g_state.mutex);
    if (++known->context.references == 1) known->in_use = MarkInUse(known->physical);
  }
  *context = &known->context;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  PF_STAND_IN_CALL(cuDevicePrimaryCtxRelease);
  Device* const known = DeviceOf(device);
  if (known == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const MutexLock lock(g_state.mutex);  // the check and the decrement are one
  if (known->context.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--known->context.references == 0) known->in_use.reset();
  return CUDA_SUCCESS;
}

// A broken context can be entered: the calls made in it tell.
CUresult cuCtxPushCurrent(CUcontext context) {
  PF_STAND_IN_CALL(cuCtxPushCurrent);
  for (const auto& device : g_state.devices) {
    if (&device->context != context) continue;
    if (context->references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    current_contexts.push_back(context);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  PF_STAND_IN_CALL(cuCtxPopCurrent);
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = current_contexts.back();
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  PF_STAND_IN_CALL(cuThreadExchangeStreamCaptureMode);
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::swap(capture_mode, *mode);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t /*value*/) {
  PF_STAND_IN_CONTEXT_CALL(cuCtxSetLimit);
  return limit >= CU_LIMIT_STACK_SIZE && limit < CU_LIMIT_MAX ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  PF_STAND_IN_CONTEXT_CALL(cuCtxGetStreamPriorityRange);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
