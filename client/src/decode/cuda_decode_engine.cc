// SPDX-License-Identifier: Apache-2.0
// DecodeEngine with nvJPEG and the client's kernels.
#include <algorithm>
#include <map>
#include <utility>

#include "client/src/decode/decode_engine.h"
#include "client/src/decode/image_decoder.h"
#include "client/src/gpu/batch_writer.h"
#include "client/src/gpu/capture_check.h"
#include "client/src/gpu/pinned_memory.h"
#include "common/base/sync.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/stream.h"

namespace pinfeed {
namespace {

CUdeviceptr AddressOf(const std::byte* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

// Purpose: see DecodeWorker. Owns its decoder, a stream and page-locked memory.
class CudaDecodeWorker final : public DecodeWorker {
 public:
  static Result<std::unique_ptr<DecodeWorker>> Create(std::shared_ptr<const CudaDevice> device,
                                                      const OfferedImage& image, uint64_t staging_bytes) {
    std::unique_ptr<CudaDecodeWorker> worker(new CudaDecodeWorker(std::move(device)));
    RETURN_IF_ERROR(worker->Open(image, staging_bytes));
    return std::unique_ptr<DecodeWorker>(std::move(worker));
  }

  std::span<std::byte> staging() override { return staging_->bytes(); }

  Status Decode(std::span<const ImageToDecode> images, std::span<Status> failures) override {
    return decoder_->Decode(images, failures);
  }

  Status CopyAll(std::span<const Copy> copies) override {
    if (copies.empty()) return OkStatus();
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    const CudaDriver& driver = device_->driver();
    const std::string what = "copy a batch's tensors to GPU " + device_->uuid();
    const CUstream stream = stream_.get().native;
    CUresult queued = CUDA_SUCCESS;
    uint64_t used = 0;  // of the staging memory
    for (const Copy& copy : copies) {
      if (queued != CUDA_SUCCESS) break;
      if (copy.from == nullptr)
        queued = driver.cuMemsetD8Async(AddressOf(copy.to), 0, copy.bytes, stream);
      else if (IsStaged(copy.from))
        queued = driver.cuMemcpyHtoDAsync(AddressOf(copy.to), copy.from, copy.bytes, stream);
      else
        queued = QueueStaged(copy, stream, &used);
    }
    const CUresult done = driver.cuStreamSynchronize(stream);
    RETURN_IF_ERROR(CudaStatus(queued, what));
    return CudaStatus(done, what);
  }

 private:
  explicit CudaDecodeWorker(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {}

  bool IsStaged(const std::byte* from) const {
    const std::span<std::byte> staging = staging_->bytes();
    return from >= staging.data() && from < staging.data() + staging.size();
  }

  // Copies by way of the staging memory, of which `used` bytes wait for the stream.
  CUresult QueueStaged(const Copy& copy, CUstream stream, uint64_t* used) {
    const CudaDriver& driver = device_->driver();
    const std::span<std::byte> staging = staging_->bytes();
    for (uint64_t at = 0; at < copy.bytes;) {
      if (*used == staging.size()) {
        const CUresult waited = driver.cuStreamSynchronize(stream);
        if (waited != CUDA_SUCCESS) return waited;
        *used = 0;
      }
      const uint64_t bytes = std::min(copy.bytes - at, staging.size() - *used);
      std::byte* const staged = std::copy_n(copy.from + at, bytes, staging.data() + *used) - bytes;
      const CUresult queued = driver.cuMemcpyHtoDAsync(AddressOf(copy.to) + at, staged, bytes, stream);
      if (queued != CUDA_SUCCESS) return queued;
      at += bytes;
      *used += bytes;
    }
    return CUDA_SUCCESS;
  }

  Status Open(const OfferedImage& image, uint64_t staging_bytes) {
    ASSIGN_OR_RETURN(staging_, PinnedMemory::Create(device_, "pinfeed-staging", staging_bytes));
    {
      ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
      ASSIGN_OR_RETURN(stream_, CreateStream(*device_, "create a stream on GPU " + device_->uuid()));
    }
    ASSIGN_OR_RETURN(decoder_, GpuImageDecoder::Create(device_, {image.height, image.width, image.channels}));
    return OkStatus();
  }

  const std::shared_ptr<const CudaDevice> device_;
  std::unique_ptr<const PinnedMemory> staging_;
  UniqueCudaStream stream_;
  std::unique_ptr<GpuImageDecoder> decoder_;
};

// Purpose: see DecodedMemory. Owns it, and an event behind its last reader.
class CudaDecodedMemory final : public DecodedMemory {
 public:
  CudaDecodedMemory(std::shared_ptr<const CudaDevice> device, DeviceMemory memory, UniqueCudaEvent event,
                    BatchWriter writer)
      : device_(std::move(device)),
        memory_(std::move(memory)),
        event_(std::move(event)),
        writer_(std::move(writer)) {}

  std::byte* address() const override {
    return reinterpret_cast<std::byte*>(memory_.address());  // NOLINT(performance-no-int-to-ptr)
  }

  Status Write(uint32_t samples, const OutputMemory& outputs, void* native) override {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    auto* const stream = static_cast<CUstream>(native);
    RETURN_IF_ERROR(CheckNotCapturing(*device_, stream, "write a batch"));
    Status queued = writer_.Queue(address(), samples, outputs, stream);
    if (queued.ok())
      queued = CudaStatus(device_->driver().cuEventRecord(event_.get().native, stream),
                          "record that a batch is written on GPU " + device_->uuid());
    // Fails only with a broken context, in which nothing runs any more.
    if (!queued.ok()) (void)device_->driver().cuStreamSynchronize(stream);
    return queued;
  }

  Result<bool> Written() override {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    const CUresult result = device_->driver().cuEventQuery(event_.get().native);
    if (result == CUDA_ERROR_NOT_READY) return false;
    RETURN_IF_ERROR(CudaStatus(result, "see what GPU " + device_->uuid() + " has executed"));
    return true;
  }

  void Abandon() override { memory_.Abandon(); }

  Result<UniqueFd> Export() const override { return memory_.Export(); }

 private:
  const std::shared_ptr<const CudaDevice> device_;
  DeviceMemory memory_;
  const UniqueCudaEvent event_;
  const BatchWriter writer_;
};

// Purpose: see DecodeEngine.
class CudaDecodeEngine final : public DecodeEngine {
 public:
  explicit CudaDecodeEngine(std::shared_ptr<const CudaDevice> device)
      : device_(std::move(device)), kind_("nvJPEG on " + device_->name()) {}

  const std::string& kind() const override { return kind_; }

  Result<std::unique_ptr<DecodeWorker>> MakeWorker(const OfferedImage& image,
                                                   uint64_t staging_bytes) override {
    return CudaDecodeWorker::Create(device_, image, staging_bytes);
  }

  Result<std::unique_ptr<DecodedMemory>> MakeMemory(const FeedOffer& offer,
                                                    const std::vector<uint64_t>& offsets, uint64_t bytes,
                                                    bool shared) override {
    Result<DeviceMemory> made =
        shared ? DeviceMemory::Create(device_, bytes) : DeviceMemory::Allocate(device_, bytes);
    ASSIGN_OR_RETURN(DeviceMemory memory, std::move(made));
    ASSIGN_OR_RETURN(std::shared_ptr<const ConvertKernel> kernel, ConvertKernel::For(device_));
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    ASSIGN_OR_RETURN(UniqueCudaEvent event,
                     CreateEvent(*device_, "create an event on GPU " + device_->uuid()));
    return std::unique_ptr<DecodedMemory>(std::make_unique<CudaDecodedMemory>(
        device_, std::move(memory), std::move(event), BatchWriter(offer, offsets, std::move(kernel))));
  }

  Result<CopyToForeign> Import(UniqueFd memory, uint64_t bytes) override {
    ASSIGN_OR_RETURN(const uint64_t pages, DeviceMemory::WholePages(*device_, bytes));
    ASSIGN_OR_RETURN(DeviceMemory mapped, DeviceMemory::Import(device_, memory.get(), pages, false));
    ASSIGN_OR_RETURN(std::shared_ptr<const UniqueCudaStream> stream, CopyStream());
    const auto target = std::make_shared<const DeviceMemory>(std::move(mapped));
    return CopyToForeign([device = device_, target, stream](const std::byte* batch, uint64_t size) -> Status {
      ASSIGN_OR_RETURN(const CudaScope scope, device->Enter());
      const std::string what = "copy a decoded batch to another process on GPU " + device->uuid();
      const CUstream native = stream->get().native;
      const CudaDriver& driver = device->driver();
      RETURN_IF_ERROR(
          CudaStatus(driver.cuMemcpyDtoDAsync(target->address(), AddressOf(batch), size, native), what));
      return CudaStatus(driver.cuStreamSynchronize(native), what);
    });
  }

 private:
  // One stream for all copies to other processes, of high priority as those of the decoders.
  Result<std::shared_ptr<const UniqueCudaStream>> CopyStream() PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (copy_stream_ != nullptr) return copy_stream_;
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    ASSIGN_OR_RETURN(UniqueCudaStream stream,
                     CreateUrgentStream(*device_, "create a stream for copies on GPU " + device_->uuid()));
    copy_stream_ = std::make_shared<UniqueCudaStream>(std::move(stream));
    return copy_stream_;
  }

  const std::shared_ptr<const CudaDevice> device_;
  const std::string kind_;
  Mutex mutex_;
  std::shared_ptr<const UniqueCudaStream> copy_stream_ PF_GUARDED_BY(mutex_);
};

// Whether the GPU decodes: tried once a process, since a decoder takes some time to make.
Status TryDecoder(const std::shared_ptr<const CudaDevice>& device) {
  static Mutex mutex;
  static auto* const tried = new std::map<int, Status>;  // never destroyed, as other statics may use it
  const MutexLock lock(mutex);
  const auto known = tried->find(device->ordinal());
  if (known != tried->end()) return known->second;
  Status usable = GpuImageDecoder::Create(device, {1, 1, 3}).status();
  // What is lacking now may be there later.
  if (usable.ok() || usable.code() == Code::kUnavailable) tried->emplace(device->ordinal(), usable);
  return usable;
}

}  // namespace

Result<std::shared_ptr<DecodeEngine>> OpenDecodeEngine(int ordinal) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const CudaDevice> device, CudaDevice::Open(ordinal));
  RETURN_IF_ERROR(TryDecoder(device));
  return std::shared_ptr<DecodeEngine>(std::make_shared<CudaDecodeEngine>(device));
}

}  // namespace pinfeed
