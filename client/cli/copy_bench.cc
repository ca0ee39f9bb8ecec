// SPDX-License-Identifier: Apache-2.0
#include "client/cli/copy_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "common/os/memfd.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMaxBytes = 256'000'000;
constexpr uint64_t kLeastBytes = 16'000'000;
constexpr uint64_t kPiece = 16'000'000;
// Runs stop after the first limit, and a single run after the second.
constexpr double kEnoughSeconds = 0.15;
constexpr double kMaxCopySeconds = 0.6;
constexpr uint32_t kFewestRuns = 2;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double OverlapFigure::hidden() const {
  const double shorter = std::min(copy_seconds, work_seconds);
  if (shorter <= 0) return 0;
  return std::clamp((copy_seconds + work_seconds - both_seconds) / shorter, 0.0, 1.0);
}

Result<std::unique_ptr<CopyBench>> CopyBench::Create(std::shared_ptr<const CudaDevice> device,
                                                     uint64_t host_available_bytes) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  {
    ASSIGN_OR_RETURN(const CudaScope scope, device->Enter());
    RETURN_IF_ERROR(CudaStatus(device->driver().cuMemGetInfo(&free_bytes, &total_bytes),
                               "ask for the free memory of GPU " + device->uuid()));
  }
  // Two buffers on the host and one on the GPU, leaving room for other processes.
  const uint64_t room = std::min<uint64_t>(host_available_bytes / 8, free_bytes / 4);
  if (room < kLeastBytes) {
    return ResourceExhausted(
        "measure copies to GPU " + device->uuid() + ": " + std::to_string(host_available_bytes) +
        " bytes are available on the host and " + std::to_string(free_bytes) + " on the GPU; at least " +
        std::to_string(kLeastBytes * 8) + " and " + std::to_string(kLeastBytes * 4) + " are needed");
  }
  const uint64_t bytes = std::min(room, kMaxBytes) / kPiece * kPiece;
  std::unique_ptr<CopyBench> bench(new CopyBench(std::move(device), bytes));
  RETURN_IF_ERROR(bench->Open());
  return bench;
}

Status CopyBench::Open() {
  pageable_.resize(bytes_, std::byte{1});
  ASSIGN_OR_RETURN(const UniqueFd memory, CreateMemfd("pinfeed-doctor", bytes_));
  ASSIGN_OR_RETURN(pinned_, Mapping::Map(memory.get(), bytes_, Access::kReadWrite, true));
  const Clock::time_point start = Clock::now();
  ASSIGN_OR_RETURN(registration_, HostRegistration::Create(device_, pinned_.data(), bytes_));
  pinning_seconds_ = Since(start);
  ASSIGN_OR_RETURN(target_, DeviceMemory::Create(device_, bytes_));
  ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
  for (UniqueCudaStream* owner : {&copies_, &work_}) {
    ASSIGN_OR_RETURN(*owner, CreateStream(*device_, "make a stream on GPU " + device_->uuid()));
  }
  return OkStatus();
}

CopyBench::~CopyBench() {
  // Destroying a stream does not wait for its copies, which use the buffers that are freed next.
  const auto scope = device_->Enter();
  for (UniqueCudaStream* stream : {&copies_, &work_}) {
    if (!*stream) continue;
    // Fails if the context is broken, which is then lost anyway.
    (void)device_->driver().cuStreamSynchronize(stream->get().native);
    stream->reset();
  }
}

double CopyBench::pinning_bytes_per_second() const {
  return static_cast<double>(bytes_) / std::max(pinning_seconds_, 1e-9);
}

Status CopyBench::Finish(const UniqueCudaStream& stream) const {
  return CudaStatus(device_->driver().cuStreamSynchronize(stream.get().native),
                    "wait for copies to GPU " + device_->uuid());
}

Status CopyBench::CopyOne(Source source, uint64_t offset, uint64_t bytes) {
  const std::byte* from = pageable_.data() + offset;
  if (source == Source::kPinThenCopy) std::memcpy(pinned_.data() + offset, from, bytes);
  if (source != Source::kPageable) from = pinned_.data() + offset;
  const CUresult result =
      device_->driver().cuMemcpyHtoDAsync(target_.address() + offset, from, bytes, copies_.get().native);
  return result == CUDA_SUCCESS
             ? OkStatus()
             : CudaStatus(result, "copy " + std::to_string(bytes) + " bytes to GPU " + device_->uuid());
}

// Does what `tensor.to(device)` does: a blocking call waits for each copy, otherwise one wait covers all.
Status CopyBench::Copy(Source source, uint64_t count, uint64_t bytes, bool blocking, double limit,
                       uint32_t* copied) {
  const uint64_t places = bytes_ / bytes;
  const Clock::time_point start = Clock::now();
  uint32_t done = 0;
  for (; done < count && (done % 16 != 0 || Since(start) < limit); ++done) {
    const uint64_t place = done % places;
    // Staging memory is reused once its last copy has finished.
    if (place == 0 && done > 0 && source == Source::kPinThenCopy) RETURN_IF_ERROR(Finish(copies_));
    RETURN_IF_ERROR(CopyOne(source, place * bytes, bytes));
    if (blocking) RETURN_IF_ERROR(Finish(copies_));
  }
  *copied = done;
  return Finish(copies_);
}

Result<double> CopyBench::BytesPerSecond(Source source) {
  ASSIGN_OR_RETURN(const CopyFigure figure, Measure(bytes_ / kPiece, kPiece, source, false));
  return static_cast<double>(bytes_) / figure.seconds;
}

Result<CopyFigure> CopyBench::Measure(uint64_t count, uint64_t bytes, Source source, bool blocking) {
  ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
  CopyFigure figure;
  const Clock::time_point start = Clock::now();
  for (uint32_t run = 0; run < kFewestRuns || Since(start) < kEnoughSeconds; ++run) {
    const Clock::time_point began = Clock::now();
    uint32_t copied = 0;
    RETURN_IF_ERROR(Copy(source, count, bytes, blocking, kMaxCopySeconds, &copied));
    const double seconds = Since(began) / copied * static_cast<double>(count);
    if (run == 0 || seconds < figure.seconds) {
      figure.seconds = seconds;
      figure.copied = copied;
    }
    if (Since(start) > kMaxCopySeconds) break;
  }
  return figure;
}

// Copies within the GPU's memory, from one half of the buffer to the other.
Status CopyBench::Work(uint32_t rounds) {
  const uint64_t half = bytes_ / 2;
  for (uint32_t i = 0; i < rounds; ++i) {
    RETURN_IF_ERROR(CudaStatus(device_->driver().cuMemcpyDtoDAsync(
                                   target_.address() + half, target_.address(), half / 2, work_.get().native),
                               "copy within GPU " + device_->uuid()));
  }
  return OkStatus();
}

Result<OverlapFigure> CopyBench::Overlap(Source source) {
  ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
  const uint64_t bytes = bytes_ / 4;
  OverlapFigure figure;
  const auto timed = [&](uint32_t rounds, bool copy, double* call_seconds) -> Result<double> {
    const Clock::time_point start = Clock::now();
    RETURN_IF_ERROR(Work(rounds));
    if (copy) {
      const Clock::time_point called = Clock::now();
      // Uses the buffer's last quarter, which the work neither reads nor writes.
      RETURN_IF_ERROR(CopyOne(source, bytes_ - bytes, bytes));
      *call_seconds = Since(called);
    }
    RETURN_IF_ERROR(Finish(copies_));
    RETURN_IF_ERROR(Finish(work_));
    return Since(start);
  };
  double ignored = 0;
  RETURN_IF_ERROR(timed(1, true, &ignored).status());  // the first run is slower
  ASSIGN_OR_RETURN(figure.copy_seconds, timed(0, true, &ignored));
  ASSIGN_OR_RETURN(const double one, timed(1, false, &ignored));
  ASSIGN_OR_RETURN(const double five, timed(5, false, &ignored));
  const double round = std::max((five - one) / 4, 1e-7);
  const auto rounds = static_cast<uint32_t>(std::clamp(figure.copy_seconds / round, 1.0, 1000.0));
  ASSIGN_OR_RETURN(figure.work_seconds, timed(rounds, false, &ignored));
  ASSIGN_OR_RETURN(figure.both_seconds, timed(rounds, true, &figure.call_seconds));
  return figure;
}

}  // namespace pinfeed
