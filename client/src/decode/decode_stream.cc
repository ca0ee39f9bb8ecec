// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/decode_stream.h"

#include <string>

namespace pinfeed {

Result<std::unique_ptr<DecodeStream>> DecodeStream::Create(std::shared_ptr<const CudaDevice> device) {
  ASSIGN_OR_RETURN(std::shared_ptr<const ConvertKernel> kernel, ConvertKernel::For(device));
  std::unique_ptr<DecodeStream> stream(new DecodeStream(std::move(device), std::move(kernel)));
  RETURN_IF_ERROR(stream->Open());
  return stream;
}

Status DecodeStream::Open() {
  const std::string what = "create a stream for decoding on GPU " + device_->uuid();
  // Decoding should not queue up behind the trainer's kernels.
  ASSIGN_OR_RETURN(stream_, CreateUrgentStream(*device_, what));
  ASSIGN_OR_RETURN(done_, CreateEvent(*device_, what, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
  return OkStatus();
}

Status DecodeStream::Copy(CUdeviceptr to, const void* from, uint64_t bytes) {
  return CudaStatus(device_->driver().cuMemcpyHtoDAsync(to, from, bytes, native()),
                    "copy " + std::to_string(bytes) + " bytes to GPU " + device_->uuid());
}

Status DecodeStream::Zero(CUdeviceptr to, uint64_t bytes) {
  return CudaStatus(device_->driver().cuMemsetD8Async(to, 0, bytes, native()),
                    "clear " + std::to_string(bytes) + " bytes of GPU " + device_->uuid());
}

Status DecodeStream::Wait() {
  const std::string what = "decode images on GPU " + device_->uuid();
  RETURN_IF_ERROR(CudaStatus(device_->driver().cuEventRecord(done_.get().native, native()), what));
  return CudaStatus(device_->driver().cuEventSynchronize(done_.get().native), what);
}

// Fails only with a broken context, in which nothing runs.
void DecodeStream::Drain() {
  (void)device_->driver().cuStreamSynchronize(native());
}

}  // namespace pinfeed
