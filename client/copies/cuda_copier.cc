// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/copies/copy_ring.h"
#include "client/copies/device_copier.h"
#include "client/copies/helper_threads.h"
#include "common/base/first_error.h"
#include "common/base/round_up.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/stream.h"
#include "common/os/host_limits.h"

namespace pinfeed {
namespace {

// Smaller page-locked sources pass through the ring as well: one copy of many costs less than a copy of each.
constexpr uint64_t kDirectBytes = uint64_t{64} << 10;
// What passes through the ring with one copy is at least so much, and a fourth of all: the GPU copies the
// first fourth while the second one is filled.
constexpr uint64_t kMinLoadBytes = uint64_t{128} << 10;
constexpr uint64_t kPageBytes = 4096;
// What a thread fills at a time.
constexpr uint64_t kPartBytes = uint64_t{256} << 10;
// Waking a thread takes as long as copying so much.
constexpr uint64_t kBytesPerHelper = uint64_t{1} << 20;

// What passes through one slot of the ring.
struct Load {
  std::atomic<bool> claimed{false};            // by the thread that takes the slot
  std::atomic<CopyRing::Slot*> slot{nullptr};  // null: not yet; NoSlot(): there is none, after an error
  std::atomic<uint64_t> unfilled{0};           // parts
};
CopyRing::Slot* NoSlot() {
  static CopyRing::Slot none;
  return &none;
}
// How long a thread watches for a slot that another one takes, before it sleeps. Taking one that is free
// takes less. If none is, the GPU has enough to copy until the threads have woken.
constexpr std::chrono::microseconds kWatch(20);

class CudaCopier final : public DeviceCopier {
 public:
  CudaCopier(std::shared_ptr<const CudaDevice> device, uint32_t threads, uint32_t slots)
      : device_(std::move(device)),
        driver_(device_->driver()),
        ring_(device_, slots),
        helpers_(threads - 1) {}

  Result<uint32_t> Copy(std::span<const HostCopy> copies, void* stream, bool wait) override {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    ASSIGN_OR_RETURN(const bool capturing, IsCapturing(*device_, static_cast<CUstream>(stream)));
    if (capturing) {
      return FailedPrecondition(
          "the stream is being captured: a graph would copy from memory that is used again; copy before the "
          "capture, or on another stream");
    }
    Result<uint32_t> reading = Queue(copies, static_cast<CUstream>(stream), wait);
    // So that nothing reads the sources. Fails only in a broken context, in which nothing runs any more.
    if (!reading.ok()) (void)driver_.cuStreamSynchronize(static_cast<CUstream>(stream));
    return reading;
  }

  Result<StreamState> State(void* stream) override {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    ASSIGN_OR_RETURN(const bool capturing, IsCapturing(*device_, static_cast<CUstream>(stream)));
    if (capturing) return StreamState::kCapturing;
    const CUresult result = driver_.cuStreamQuery(static_cast<CUstream>(stream));
    if (result == CUDA_ERROR_NOT_READY) return StreamState::kBusy;
    RETURN_IF_ERROR(CudaStatus(result, "ask for the state of a stream of GPU " + device_->uuid()));
    return StreamState::kIdle;
  }

 private:
  std::string What() const { return "copy to GPU " + device_->uuid(); }

  // Whether the GPU can read the source itself. If the driver says nothing of it, it is pageable.
  bool IsPageLocked(const HostCopy& copy) const {
    std::array<CUpointer_attribute, 3> attributes{CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    unsigned int type = 0;
    CUdeviceptr start = 0;
    size_t size = 0;
    std::array<void*, 3> values{&type, &start, &size};
    const auto source = reinterpret_cast<CUdeviceptr>(copy.source);
    if (driver_.cuPointerGetAttributes(attributes.size(), attributes.data(), values.data(), source) !=
        CUDA_SUCCESS)
      return false;
    return type == CU_MEMORYTYPE_HOST && source >= start && source - start <= size &&
           size - (source - start) >= copy.bytes;
  }

  Result<uint32_t> Queue(std::span<const HostCopy> copies, CUstream stream, bool wait) {
    StagedBytes staged;
    uint32_t direct = 0;
    for (const HostCopy& copy : copies) {
      if (copy.span >= kDirectBytes && copy.span == copy.bytes && IsPageLocked(copy)) {
        RETURN_IF_ERROR(
            CudaStatus(driver_.cuMemcpyHtoDAsync(copy.target, copy.source, copy.bytes, stream), What()));
        ++direct;
      } else {
        staged.Add(copy);
      }
    }
    UniqueCudaEvent read;
    if (direct != 0 && wait) {
      ASSIGN_OR_RETURN(read, CreateEvent(*device_, What()));
      RETURN_IF_ERROR(CudaStatus(driver_.cuEventRecord(read.get().native, stream), What()));
    }
    RETURN_IF_ERROR(SendStaged(staged, stream));
    if (!read) return direct;
    RETURN_IF_ERROR(CudaStatus(driver_.cuEventSynchronize(read.get().native), What()));
    return 0U;
  }

  Status SendStaged(const StagedBytes& staged, CUstream stream) {
    const uint64_t total = staged.size();
    if (total == 0) return OkStatus();
    const uint64_t quarter = RoundUp(total / 4, kPageBytes);
    const uint64_t load_bytes = std::clamp(quarter, kMinLoadBytes, CopyRing::kSlotBytes);
    const uint64_t load_count = PartsOf(total, load_bytes);
    const uint64_t parts = PartsOf(load_bytes, kPartBytes);  // of a load
    RETURN_IF_ERROR(ring_.Grow(load_count));
    const std::unique_ptr<Load[]> loads(new Load[load_count]);
    for (uint64_t i = 0; i < load_count; ++i) loads[i].unfilled.store(parts, std::memory_order_relaxed);
    std::atomic<uint64_t> next{0};
    FirstError error;
    const auto work = [&]() noexcept {
      const auto scope = device_->Enter();
      error.Set(scope.status());
      while (true) {
        const uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
        if (number >= load_count * parts) return;
        const uint64_t begin = number / parts * load_bytes;
        const uint64_t end = std::min(begin + load_bytes, total);
        const uint64_t from = std::min(begin + number % parts * kPartBytes, end);
        Load& load = loads[number / parts];
        // After an error the loads are still gone through, since a thread may wait for a slot of theirs.
        if (!error.failed()) Fill(staged, from, std::min(from + kPartBytes, end), from - begin, load, error);
        if (load.unfilled.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
        Finish(staged, begin, end, load, stream, error);
      }
    };
    // CU_STREAM_PER_THREAD is another stream in each helper.
    const uint64_t helpers = stream == CU_STREAM_PER_THREAD ? 0 : helpers_.count();
    helpers_.Run(static_cast<uint32_t>(std::min(total / kBytesPerHelper, helpers)), work);
    return error.Get();
  }

  void Fill(const StagedBytes& staged, uint64_t begin, uint64_t end, uint64_t offset, Load& load,
            FirstError& error) {
    const CopyRing::Slot* const slot = SlotOf(load, error);
    if (slot != NoSlot()) staged.Read(begin, end, slot->memory + offset);
  }

  // The thread that comes first takes the slot, and the others wait for it without a lock, which would let
  // them go one after the other.
  CopyRing::Slot* SlotOf(Load& load, FirstError& error) {
    if (!load.claimed.exchange(true, std::memory_order_relaxed)) {
      Result<CopyRing::Slot*> taken = ring_.Take();
      error.Set(taken.status());
      load.slot.store(taken.ok() ? *taken : NoSlot(), std::memory_order_release);
      load.slot.notify_all();
    }
    const auto until = std::chrono::steady_clock::now() + kWatch;
    CopyRing::Slot* slot = nullptr;
    while ((slot = load.slot.load(std::memory_order_acquire)) == nullptr) {
      if (std::chrono::steady_clock::now() > until) load.slot.wait(nullptr, std::memory_order_acquire);
    }
    return slot;
  }

  // Sends a load that is filled, unless there is an error. For the thread that has filled the last part.
  void Finish(const StagedBytes& staged, uint64_t begin, uint64_t end, const Load& load, CUstream stream,
              FirstError& error) {
    CopyRing::Slot* const slot = load.slot.load(std::memory_order_acquire);
    if (slot == nullptr || slot == NoSlot()) return;
    const bool send = !error.failed();
    Status sent;
    try {
      if (send) sent = Send(staged.Targets(begin, end), *slot, stream);
    } catch (const std::bad_alloc&) {
      sent = ResourceExhausted("out of memory for the ranges of a copy");
    }
    if (send && sent.ok()) return ring_.GiveBackSent(slot);
    if (!sent.ok()) {
      error.Set(sent);
      // In a broken context, where waiting fails, nothing reads the slot any more.
      (void)driver_.cuStreamSynchronize(stream);
    }
    ring_.GiveBackUnsent(slot);
  }

  Status Send(const std::vector<TargetRange>& ranges, const CopyRing::Slot& slot, CUstream stream) const {
    for (const TargetRange& range : ranges) {
      RETURN_IF_ERROR(CudaStatus(
          driver_.cuMemcpyHtoDAsync(range.target, slot.memory + range.offset, range.bytes, stream), What()));
    }
    return CudaStatus(driver_.cuEventRecord(slot.sent.get().native, stream), What());
  }

  const std::shared_ptr<const CudaDevice> device_;
  const CudaDriver& driver_;
  CopyRing ring_;
  HelperThreads helpers_;  // goes first
};

}  // namespace

Result<std::unique_ptr<DeviceCopier>> MakeDeviceCopier(int ordinal, const DeviceCopier::Options& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<const CudaDevice> device, CudaDevice::Open(ordinal));
  const uint32_t threads = options.threads != 0
                               ? options.threads
                               : std::min(UsableCpus(AffinityCpus()), DeviceCopier::kMaxThreads);
  const uint64_t bytes = options.ring_bytes != 0 ? options.ring_bytes : DeviceCopier::kRingBytes;
  const uint64_t slots = std::max<uint64_t>(bytes / CopyRing::kSlotBytes, 1);
  return std::make_unique<CudaCopier>(std::move(device), threads, static_cast<uint32_t>(slots));
}

}  // namespace pinfeed
