// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/copy_stream.h"

#include <string>
#include <thread>

#include "common/base/log.h"

namespace pinfeed {
namespace {

// Two copies in flight keep the link busy. Short copies may all complete while the thread sleeps, so more are
// allowed, up to about half a millisecond of work.
constexpr size_t kMinInFlight = 2;
constexpr size_t kMaxInFlight = 32;
constexpr uint64_t kMaxInFlightBytes = uint64_t{32} << 20;
// How long to wait for copies in flight when the engine fails. A working GPU completes them sooner; a lost
// one may never report.
constexpr std::chrono::seconds kDrainTimeout{2};
constexpr std::chrono::milliseconds kDrainPause{1};

}  // namespace

Result<std::unique_ptr<CopyStream>> CopyStream::Create(std::shared_ptr<const CudaDevice> device) {
  std::unique_ptr<CopyStream> stream(new CopyStream(std::move(device)));
  RETURN_IF_ERROR(stream->Open());
  return stream;
}

Status CopyStream::Open() {
  const std::string what = "create the copy stream of GPU " + device_->uuid();
  ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
  ASSIGN_OR_RETURN(stream_, CreateUrgentStream(*device_, what));
  for (size_t i = 0; i < kMaxInFlight; ++i) {
    ASSIGN_OR_RETURN(UniqueCudaEvent event, CreateEvent(*device_, what));
    idle_events_.push_back(std::move(event));
  }
  return OkStatus();
}

bool CopyStream::HasRoom() const {
  return in_flight_.size() < kMinInFlight ||
         (in_flight_.size() < kMaxInFlight && in_flight_bytes_ < kMaxInFlightBytes);
}

Status CopyStream::Enqueue(CopyJob& job) {
  const std::string gpu = "GPU " + device_->uuid();
  const CudaDriver& driver = device_->driver();
  const CUstream stream = stream_.get().native;
  const auto now = Clock::now();
  for (const CopyJob::Copy& copy : job.copies) {
    const CUresult copied = copy.from != nullptr
                                ? driver.cuMemcpyHtoDAsync(copy.to, copy.from, copy.bytes, stream)
                                : driver.cuMemcpyDtoDAsync(copy.to, copy.from_device, copy.bytes, stream);
    if (copied != CUDA_SUCCESS)
      return CudaStatus(copied, "copy " + std::to_string(copy.bytes) + " bytes of a batch to " + gpu);
  }
  const CUresult recorded = driver.cuEventRecord(idle_events_.back().get().native, stream);
  if (recorded != CUDA_SUCCESS) return CudaStatus(recorded, "record the end of a copy to " + gpu);
  UniqueCudaEvent event = std::move(idle_events_.back());
  idle_events_.pop_back();
  if (in_flight_.empty()) busy_since_ = Clock::now();
  in_flight_bytes_ += job.bytes();
  in_flight_.push_back({std::move(job), std::move(event), now});
  return OkStatus();
}

Result<std::optional<CopyStream::Copied>> CopyStream::Take() {
  if (in_flight_.empty()) return std::nullopt;
  InFlight& oldest = in_flight_.front();
  const CUresult result = device_->driver().cuEventQuery(oldest.event.get().native);
  if (result == CUDA_ERROR_NOT_READY) return std::nullopt;
  if (result != CUDA_SUCCESS) return CudaStatus(result, "copy a batch to GPU " + device_->uuid());
  idle_events_.push_back(std::move(oldest.event));
  in_flight_bytes_ -= oldest.job.bytes();
  std::optional<Copied> copied({std::move(oldest.job), oldest.since, busy_since_, Clock::now()});
  in_flight_.pop_front();
  busy_since_ = copied->end;
  return copied;
}

std::vector<CopyJob> CopyStream::Abandon() {
  Drain();
  std::vector<CopyJob> jobs;
  for (InFlight& copy : in_flight_) {
    idle_events_.push_back(std::move(copy.event));
    jobs.push_back(std::move(copy.job));
  }
  in_flight_.clear();
  in_flight_bytes_ = 0;
  return jobs;
}

// In a broken context nothing is copied any more, and the stream reports that immediately.
void CopyStream::Drain() const {
  const Clock::time_point deadline = Clock::now() + kDrainTimeout;
  while (device_->driver().cuStreamQuery(stream_.get().native) == CUDA_ERROR_NOT_READY) {
    if (Clock::now() >= deadline) {
      spdlog::error("GPU {} does not complete the copies in flight: they are abandoned", device_->uuid());
      return;
    }
    std::this_thread::sleep_for(kDrainPause);
  }
}

}  // namespace pinfeed
