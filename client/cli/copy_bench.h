// SPDX-License-Identifier: Apache-2.0
// Measures how fast host memory is copied to a GPU in several ways. In: a GPU. Out: rates, and the table of
// PyTorch's tutorial "A guide on good usage of non_blocking and pin_memory() in PyTorch"
// (https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html) with its sizes: one tensor of 10^6
// floats, 1,000 of 10^3 and 1,000 of 10^6.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/result.h"
#include "common/cuda/device.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/stream.h"
#include "common/os/memfd.h"

namespace pinfeed {

// kPinThenCopy is what `tensor.pin_memory().to(device)` does once PyTorch has pinned memory in its cache: it
// copies the bytes into that memory first.
enum class Source : uint8_t { kPageable, kPinned, kPinThenCopy };
inline constexpr std::array<const char*, 3> kSourceNames = {"pageable", "pinned", "pin, then copy"};

struct TensorSet {
  const char* name;
  uint32_t count;
  uint64_t bytes;  // per tensor
  const char* size;
};
inline constexpr std::array<TensorSet, 3> kTensorSets = {{{"1 large", 1, 4'000'000, "4 MB"},
                                                          {"1,000 small", 1000, 4'000, "4 kB each"},
                                                          {"1,000 large", 1000, 4'000'000, "4 MB each"}}};

struct CopyFigure {
  uint32_t copied = 0;  // tensors per run; fewer than the set has if time ran out
  double seconds = 0;   // for the whole set, best of the runs
};

// How a copy behaves while the GPU does other work on another stream: here, copies within its memory.
struct OverlapFigure {
  double copy_seconds = 0, work_seconds = 0;  // each alone
  double both_seconds = 0;
  double call_seconds = 0;  // for which the copying call blocked its thread
  double hidden() const;    // share of the shorter one that overlapped the other
};

// Purpose: measures one GPU. Owns: three buffers (pageable, pinned, device) of `buffer_bytes()`, at most 256
// MB each. A larger set reuses them cyclically. Threads: one. Errors: the driver's, by name.
class CopyBench {
 public:
  // Uses less memory if `host_available_bytes` or the GPU has little.
  static Result<std::unique_ptr<CopyBench>> Create(std::shared_ptr<const CudaDevice> device,
                                                   uint64_t host_available_bytes);
  ~CopyBench();
  CopyBench(const CopyBench&) = delete;
  CopyBench& operator=(const CopyBench&) = delete;

  uint64_t buffer_bytes() const { return bytes_; }
  // How fast memory can be pinned, which shows why pinning per batch is slow.
  double pinning_bytes_per_second() const;
  // For a copy of the whole buffer in pieces of 16 MB.
  Result<double> BytesPerSecond(Source source);
  Result<CopyFigure> Measure(uint64_t count, uint64_t bytes, Source source, bool blocking);
  Result<OverlapFigure> Overlap(Source source);

 private:
  CopyBench(std::shared_ptr<const CudaDevice> device, uint64_t bytes)
      : device_(std::move(device)), bytes_(bytes) {}
  Status Open();
  Status CopyOne(Source source, uint64_t offset, uint64_t bytes);
  Status Copy(Source source, uint64_t count, uint64_t bytes, bool blocking, double limit, uint32_t* copied);
  Status Work(uint32_t rounds);
  Status Finish(const UniqueCudaStream& stream) const;

  const std::shared_ptr<const CudaDevice> device_;
  const uint64_t bytes_;
  std::vector<std::byte> pageable_;
  Mapping pinned_;
  HostRegistration registration_;
  double pinning_seconds_ = 0;
  DeviceMemory target_;
  UniqueCudaStream copies_;
  UniqueCudaStream work_;
};

}  // namespace pinfeed
