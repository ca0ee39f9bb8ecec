// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/stream.h"

namespace pinfeed {

namespace {

Result<UniqueCudaStream> CreateOfPriority(const CudaDevice& device, int priority, const std::string& what) {
  CUstream stream = nullptr;
  RETURN_IF_ERROR(CudaStatus(
      device.driver().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority), what));
  return UniqueCudaStream({&device, stream});
}

}  // namespace

Result<UniqueCudaStream> CreateStream(const CudaDevice& device, const std::string& what) {
  return CreateOfPriority(device, 0, what);
}

Result<UniqueCudaStream> CreateUrgentStream(const CudaDevice& device, const std::string& what) {
  int least = 0;
  int greatest = 0;
  RETURN_IF_ERROR(CudaStatus(device.driver().cuCtxGetStreamPriorityRange(&least, &greatest), what));
  return CreateOfPriority(device, greatest, what);
}

Result<UniqueCudaEvent> CreateEvent(const CudaDevice& device, const std::string& what, unsigned int flags) {
  CUevent event = nullptr;
  RETURN_IF_ERROR(CudaStatus(device.driver().cuEventCreate(&event, flags), what));
  return UniqueCudaEvent({&device, event});
}

Result<bool> IsCapturing(const CudaDevice& device, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = device.driver().cuStreamIsCapturing(stream, &status);
  // Of the legacy stream, whose use would spoil the capture of another one.
  if (asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  if (asked != CUDA_SUCCESS)
    return CudaStatus(asked, "ask whether a stream of GPU " + device.uuid() + " is being captured");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Status ReadDeviceMemory(const CudaDevice& device, CUdeviceptr from, std::span<std::byte> out,
                        const std::string& what) {
  ASSIGN_OR_RETURN(const UniqueCudaStream stream, CreateStream(device, what));
  const CudaDriver& driver = device.driver();
  RETURN_IF_ERROR(
      CudaStatus(driver.cuMemcpyDtoHAsync(out.data(), from, out.size(), stream.get().native), what));
  return CudaStatus(driver.cuStreamSynchronize(stream.get().native), what);
}

}  // namespace pinfeed
