// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "client/src/gpu/capture_check.h"
#include "client/src/gpu/convert_kernel.h"
#include "client/src/gpu/pinned_memory.h"
#include "client/src/gpu/resident_samples.h"
#include "common/base/round_up.h"
#include "common/base/sync.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/stream.h"

namespace pinfeed {
namespace {

// Lists that wait for the GPU: a trainer is at most so many batches ahead of it. As many as slots at most.
constexpr size_t kLists = 64;
constexpr std::chrono::microseconds kRingPollInterval(50);
constexpr uint64_t kListAlignment = 128;

const uint8_t* BytesOf(const DeviceMemory& memory, uint64_t offset) {
  return reinterpret_cast<const uint8_t*>(memory.address() + offset);  // NOLINT(performance-no-int-to-ptr)
}

// Purpose: implements ResidentSamples with the CUDA driver.
class CudaResidentSamples final : public ResidentSamples {
 public:
  static Result<std::unique_ptr<ResidentSamples>> Create(const FeedOffer& offer, int ordinal,
                                                         const UniqueFd& fd) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const CudaDevice> device, CudaDevice::Open(ordinal));
    ASSIGN_OR_RETURN(DeviceMemory memory,
                     DeviceMemory::Import(device, fd.get(), offer.resident->bytes, true));
    std::unique_ptr<CudaResidentSamples> samples(new CudaResidentSamples(offer, device, std::move(memory)));
    RETURN_IF_ERROR(samples->Open());
    return samples;
  }

  bool HasRoom(uint32_t taken) override PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (taken < room_ || taken >= kLists) return true;
    const auto scope = device_->Enter();
    if (!scope.status().ok()) return true;
    for (; room_ <= taken; ++room_) {
      const CUevent event = events_[(next_ + room_) % kLists].get().native;
      const CUresult done = device_->driver().cuEventQuery(event);  // not recorded: done
      if (done != CUDA_SUCCESS) return done != CUDA_ERROR_NOT_READY;
    }
    return true;
  }

  void AwaitRoom(uint32_t taken, std::chrono::nanoseconds at_most) override PF_EXCLUDES(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + at_most;
    while (!HasRoom(taken) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(kRingPollInterval);
  }

  Status Write(std::span<const std::byte> indexes, uint64_t epoch, const OutputMemory& outputs,
               void* native) override PF_EXCLUDES(mutex_) {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    auto* const stream = static_cast<CUstream>(native);
    const CudaDriver& driver = device_->driver();
    RETURN_IF_ERROR(CheckNotCapturing(*device_, stream, "write a batch"));
    const std::string what = "write a batch on a stream of GPU " + device_->uuid();
    const MutexLock lock(mutex_);
    const CUevent event = events_[next_].get().native;
    if (room_ == 0) RETURN_IF_ERROR(CudaStatus(driver.cuEventSynchronize(event), what));
    std::memcpy(lists_->bytes().data() + next_ * list_bytes_, indexes.data(), indexes.size());
    Status queued = Queue(static_cast<uint32_t>(indexes.size() / sizeof(uint32_t)), epoch, outputs, stream);
    if (queued.ok()) queued = CudaStatus(driver.cuEventRecord(event, stream), what);
    // Fails only with a broken context, in which nothing runs any more.
    if (!queued.ok()) (void)driver.cuStreamSynchronize(stream);
    next_ = (next_ + 1) % kLists;
    if (room_ > 0) --room_;
    return queued;
  }

  Status Unmap(SteadyTime deadline) override PF_EXCLUDES(mutex_) {
    {
      ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
      const MutexLock lock(mutex_);
      for (const UniqueCudaEvent& event : events_) {
        CUresult done = CUDA_SUCCESS;
        while ((done = device_->driver().cuEventQuery(event.get().native)) == CUDA_ERROR_NOT_READY) {
          if (std::chrono::steady_clock::now() >= deadline)
            return {
                Code::kDeadlineExceeded,
                "GPU " + device_->uuid() + " has not finished the work that reads resident samples in time"};
          std::this_thread::sleep_for(kRingPollInterval);
        }
        RETURN_IF_ERROR(CudaStatus(done, "see what GPU " + device_->uuid() + " has executed"));
      }
    }
    return memory_.Free();
  }

 private:
  CudaResidentSamples(const FeedOffer& offer, std::shared_ptr<const CudaDevice> device, DeviceMemory memory)
      : offer_(offer), device_(std::move(device)), memory_(std::move(memory)) {}

  Status Open() {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    const OfferedResident& resident = *offer_.resident;
    decltype(resident.id) id{};
    RETURN_IF_ERROR(ReadDeviceMemory(*device_, memory_.address() + resident.layout.slot_stride, id,
                                     "read the id of resident samples on GPU " + device_->uuid()));
    if (id != resident.id)
      return Internal("the memory that the daemon offers for resident samples on GPU " + device_->uuid() +
                      " is another arena");
    list_bytes_ = RoundUp(offer_.layout.batch_size * sizeof(uint32_t), kListAlignment);
    ASSIGN_OR_RETURN(lists_, PinnedMemory::Create(device_, "pinfeed-lists", kLists * list_bytes_));
    ASSIGN_OR_RETURN(kernel_, ConvertKernel::For(device_));
    const MutexLock lock(mutex_);
    for (UniqueCudaEvent& event : events_) {
      ASSIGN_OR_RETURN(event, CreateEvent(*device_, "create an event on GPU " + device_->uuid()));
    }
    return OkStatus();
  }

  // One launch suffices unless there are more tensors than it takes.
  Status Queue(uint32_t samples, uint64_t epoch, const OutputMemory& outputs, CUstream stream) const
      PF_REQUIRES(mutex_) {
    const BatchLayout& source = offer_.source();
    GatherSamples work{};
    work.indexes = reinterpret_cast<const uint32_t*>(  // NOLINT(performance-no-int-to-ptr)
        lists_->device_address() + next_ * list_bytes_);
    work.samples = samples;
    work.dataset_samples = source.batch_size;
    work.epoch = epoch;
    size_t element_bytes = 1;
    for (size_t i = 0; i < offer_.outputs.size(); ++i) {
      const OfferedOutput& output = offer_.outputs[i];
      const bool full = work.copy_count == kMaxSampleCopies || (output.image && work.pixels != nullptr);
      if (full) {
        RETURN_IF_ERROR(kernel_->Launch(work, element_bytes, stream));
        work.pixels = nullptr;
        work.copy_count = 0;
      }
      const TensorPlace& tensor = source.tensors[output.tensor];
      const uint8_t* const first = BytesOf(memory_, tensor.offset);
      if (output.image) {
        element_bytes = DTypeSize(output.spec.dtype);
        work.pixels = first;
        work.out = outputs[i];
        work.view = *output.image->view;
        work.channels = output.image->channels;
        work.source_chw = output.image->source_layout == ImageLayout::kChw ? 1 : 0;
        work.out_chw = output.image->output_layout == ImageLayout::kChw ? 1 : 0;
        std::ranges::copy(output.image->table, work.table);
      } else {
        work.copies[work.copy_count++] = {first, static_cast<uint8_t*>(outputs[i]), tensor.sample_bytes};
      }
    }
    return kernel_->Launch(work, element_bytes, stream);
  }

  const FeedOffer offer_;
  const std::shared_ptr<const CudaDevice> device_;
  DeviceMemory memory_;
  std::shared_ptr<const ConvertKernel> kernel_;
  uint64_t list_bytes_ = 0;
  std::unique_ptr<const PinnedMemory> lists_;
  Mutex mutex_;
  std::array<UniqueCudaEvent, kLists> events_ PF_GUARDED_BY(mutex_);  // behind the last reader of each list
  size_t next_ PF_GUARDED_BY(mutex_) = 0;                             // the list to be used next
  size_t room_ PF_GUARDED_BY(mutex_) = 0;  // lists from there that the GPU has read
};

}  // namespace

Result<std::unique_ptr<ResidentSamples>> MapResidentSamples(const FeedOffer& offer, int ordinal,
                                                            UniqueFd fd) {
  return CudaResidentSamples::Create(offer, ordinal, fd);
}

}  // namespace pinfeed
