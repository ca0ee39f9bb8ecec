// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "client/src/gpu/batch_writer.h"
#include "client/src/gpu/capture_check.h"
#include "client/src/gpu/device_slots.h"
#include "common/base/raise_to.h"
#include "common/base/sync.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/stream.h"
#include "common/spec/names.h"

namespace pinfeed {
namespace {

constexpr std::chrono::microseconds kPollInterval(50);
// Delays the first context check, since most waits are shorter.
constexpr std::chrono::milliseconds kCheckInterval(10);

// Purpose: detects a broken context. A driver may report a fault only for work that is under way, so each
// check queues an event on a stream of its own, which waits for none of the trainer's. Owns the stream and an
// event. Threads: one at a time.
class ContextCheck {
 public:
  explicit ContextCheck(const CudaDevice& device) : device_(device) {}

  // Returns the sticky error of a broken context, in which queued work never runs. Never blocks.
  Status Check() {
    ASSIGN_OR_RETURN(const CudaScope scope, device_.Enter());
    const CUresult result = Try();
    return IsStickyCudaError(result) ? CudaStatus(result, "use GPU " + device_.uuid()) : OkStatus();
  }

 private:
  CUresult Try() {
    const CudaDriver& driver = device_.driver();
    CUstream stream = stream_.get().native;
    if (stream == nullptr) {
      const CUresult result = driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
      if (result != CUDA_SUCCESS) return result;
      stream_.reset({&device_, stream});
    }
    CUevent event = event_.get().native;
    if (event == nullptr) {
      const CUresult result = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
      if (result != CUDA_SUCCESS) return result;
      event_.reset({&device_, event});
    }
    const CUresult result = driver.cuEventQuery(event);  // recorded by the previous check
    return result == CUDA_SUCCESS ? driver.cuEventRecord(event, stream) : result;
  }

  const CudaDevice& device_;
  UniqueCudaStream stream_;
  UniqueCudaEvent event_;
};

std::vector<uint64_t> OffsetsOf(const BatchLayout& layout) {
  std::vector<uint64_t> offsets;
  for (const TensorPlace& tensor : layout.tensors) offsets.push_back(tensor.offset);
  return offsets;
}

// Purpose: implements DeviceSlots with the CUDA driver.
class CudaSlots final : public DeviceSlots {
 public:
  CudaSlots(const FeedOffer& offer, std::shared_ptr<const CudaDevice> device, DeviceMemory memory,
            HostRegistration release, const ReleasePage* page, std::shared_ptr<const ConvertKernel> kernel)
      : offer_(offer),
        device_(std::move(device)),
        memory_(std::move(memory)),
        release_(std::move(release)),
        page_(page),
        writer_(offer_, OffsetsOf(offer_.layout), std::move(kernel)) {}

  std::byte* address() const override {
    return reinterpret_cast<std::byte*>(memory_.address());  // NOLINT(performance-no-int-to-ptr)
  }

  Status Write(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream) override {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    RETURN_IF_ERROR(CheckNotCapturing(*device_, static_cast<CUstream>(stream), "write a batch"));
    Status queued = writer_.Queue(address() + batch.slot * offer_.layout.slot_stride, batch.samples, outputs,
                                  static_cast<CUstream>(stream));
    if (queued.ok()) queued = QueueRelease(batch, static_cast<CUstream>(stream));
    // Waits for what was queued, since the caller may return the slot after an error. The wait fails only
    // with a broken context, in which nothing runs any more.
    if (!queued.ok()) (void)device_->driver().cuStreamSynchronize(static_cast<CUstream>(stream));
    return queued;
  }

  Status Release(const BatchDescriptor& batch, void* stream) override {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    RETURN_IF_ERROR(CheckNotCapturing(*device_, static_cast<CUstream>(stream), "release a batch"));
    return QueueRelease(batch, static_cast<CUstream>(stream));
  }

  Status Read(uint64_t offset, std::span<std::byte> out) override {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    const CudaDriver& driver = device_->driver();
    const std::string what = "read a batch's extents from GPU " + device_->uuid();
    const MutexLock lock(read_mutex_);
    if (read_stream_.get().native == nullptr) {
      ASSIGN_OR_RETURN(read_stream_, CreateStream(*device_, what));
    }
    const CUstream stream = read_stream_.get().native;
    RETURN_IF_ERROR(CudaStatus(
        driver.cuMemcpyDtoHAsync(out.data(), memory_.address() + offset, out.size(), stream), what));
    return CudaStatus(driver.cuStreamSynchronize(stream), what);
  }

  Status Unmap(SteadyTime deadline) override {
    RETURN_IF_ERROR(AwaitReleases(deadline));
    return memory_.Free();
  }

 private:
  Status AwaitReleases(SteadyTime deadline) const {
    ContextCheck context(*device_);
    SteadyTime next_check = std::chrono::steady_clock::now() + kCheckInterval;
    for (uint32_t slot = 0; slot < offer_.slot_count; ++slot) {
      const uint64_t last = queued_releases_[slot].load(std::memory_order_acquire);
      // Polls, because the GPU writes this word and wakes nobody. A later generation also counts: the slot's
      // next use may have been released by the host already.
      while (page_->slots[slot].generation.load(std::memory_order_acquire) < last) {
        const SteadyTime now = std::chrono::steady_clock::now();
        if (now >= next_check) {
          RETURN_IF_ERROR(context.Check());
          next_check = now + kCheckInterval;
        }
        if (now >= deadline)
          return {Code::kDeadlineExceeded,
                  "GPU " + device_->uuid() + " has not finished the work that uses them in time"};
        std::this_thread::sleep_for(kPollInterval);
      }
    }
    return OkStatus();
  }

  Status QueueRelease(const BatchDescriptor& batch, CUstream stream) {
    const CUdeviceptr word =
        release_.device_address() + offsetof(ReleasePage, slots) + batch.slot * sizeof(ReleaseWord);
    RETURN_IF_ERROR(CudaStatus(device_->driver().cuStreamWriteValue64(stream, word, batch.generation, 0),
                               "queue the release of a slot on a stream of GPU " + device_->uuid()));
    // Keeps the maximum: another thread may have queued a release of the slot's next use already.
    RaiseTo(batch.generation, queued_releases_[batch.slot], std::memory_order_release);
    return OkStatus();
  }

  const FeedOffer offer_;
  const std::shared_ptr<const CudaDevice> device_;
  DeviceMemory memory_;
  const HostRegistration release_;
  const ReleasePage* const page_;
  const BatchWriter writer_;
  Mutex read_mutex_;  // one read at a time
  UniqueCudaStream read_stream_ PF_GUARDED_BY(read_mutex_);
  // Per slot, the generation whose release was queued last.
  std::array<std::atomic<uint64_t>, kMaxSlots> queued_releases_{};
};

Status CheckId(const FeedOffer& offer, const CudaDevice& device, const DeviceMemory& memory) {
  ASSIGN_OR_RETURN(const CudaScope scope, device.Enter());
  decltype(offer.arena_id) id{};
  const uint64_t offset = uint64_t{offer.slot_count} * offer.layout.slot_stride;
  RETURN_IF_ERROR(
      ReadDeviceMemory(device, memory.address() + offset, id, "read the arena's id on GPU " + device.uuid()));
  if (id != offer.arena_id)
    return Internal("the memory that the daemon offers by " + std::string(BackendName(offer.backend)) +
                    " on GPU " + device.uuid() + " is another arena");
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<DeviceSlots>> MapDeviceSlots(const FeedOffer& offer, int ordinal, UniqueFd fd,
                                                    ReleasePage* release_page, size_t release_page_bytes) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const CudaDevice> device, CudaDevice::Open(ordinal));
  ASSIGN_OR_RETURN(DeviceMemory memory,
                   offer.backend == Backend::kCudaIpc
                       ? DeviceMemory::Open(device, offer.ipc_handle, offer.arena_bytes)
                       : DeviceMemory::Import(device, fd.get(), offer.arena_bytes, offer.read_only));
  RETURN_IF_ERROR(CheckId(offer, *device, memory));
  ASSIGN_OR_RETURN(HostRegistration release,
                   HostRegistration::Create(device, release_page, release_page_bytes));
  ASSIGN_OR_RETURN(std::shared_ptr<const ConvertKernel> kernel, ConvertKernel::For(device));
  return std::make_unique<CudaSlots>(offer, device, std::move(memory), std::move(release), release_page,
                                     std::move(kernel));
}

Result<std::string> GpuUuid(int ordinal) {
  return CudaDevice::UuidOf(ordinal);
}

Result<std::shared_ptr<const void>> HoldGpu(int ordinal) {
  return CudaDevice::Open(ordinal);
}

}  // namespace pinfeed
