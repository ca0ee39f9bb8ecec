// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/stream.h"

namespace pinfeed {

Result<UniqueCudaStream> CreateUrgentStream(const CudaDevice& device, const std::string& what) {
  const CudaDriver& driver = device.driver();
  int least = 0;
  int greatest = 0;
  RETURN_IF_ERROR(CudaStatus(driver.cuCtxGetStreamPriorityRange(&least, &greatest), what));
  CUstream stream = nullptr;
  RETURN_IF_ERROR(
      CudaStatus(driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest), what));
  return UniqueCudaStream({&device, stream});
}

Result<bool> IsCapturing(const CudaDevice& device, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = device.driver().cuStreamIsCapturing(stream, &status);
  if (asked != CUDA_SUCCESS)
    return CudaStatus(asked, "ask whether a stream of GPU " + device.uuid() + " is being captured");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace pinfeed
