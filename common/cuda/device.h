// SPDX-License-Identifier: Apache-2.0
// One GPU as this process sees it. In: an ordinal or a UUID. Out: its primary context, and a scope that makes
// it current.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/cuda/driver.h"

namespace pinfeed {

class CudaDevice;

// Purpose: within the scope, this thread's calls go to the device's context, and leave alone the graphs that
// other threads capture; then both are as before. Otherwise a call that a capture does not allow, such as a
// wait or an allocation, makes a capture in global mode invalid, in whatever thread that runs. Threads: the
// one that created it. Borrows: the device (outlives it).
struct CudaScopeTraits {
  struct Handle {
    const CudaDevice* device = nullptr;
    CUstreamCaptureMode mode_before = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool operator==(const Handle&) const = default;
  };
  static constexpr Handle Null() { return {}; }
  static void Close(Handle entered) noexcept;
};
using CudaScope = UniqueHandle<CudaScopeTraits>;

// Purpose: a GPU with its primary context, which is shared with the frameworks of the process. Owns one
// reference to that context. Threads: immutable; any. Errors: those of Open. Invariant: the context lives as
// long as this object.
class CudaDevice {
 public:
  // The number of GPUs that this process may see (CUDA_VISIBLE_DEVICES applies). Creates no context.
  static Result<int> Count();
  // "GPU-01234567-89ab-...", as nvidia-smi prints it. It is the same in every process.
  static Result<std::string> UuidOf(int ordinal);
  // kInvalidArgument when the ordinal does not exist.
  static Result<std::shared_ptr<const CudaDevice>> Open(int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // Without a scope, calls fail with CUDA_ERROR_INVALID_CONTEXT: what cannot fail need not look.
  Result<CudaScope> Enter() const;
  const CudaDriver& driver() const { return driver_; }
  CUdevice handle() const { return device_; }
  CUcontext context() const { return context_; }
  // Keeps the context alive until the process exits.
  void KeepContext() const noexcept;
  int ordinal() const { return ordinal_; }
  const std::string& uuid() const { return uuid_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  uint64_t total_bytes() const { return total_bytes_; }
  // -1 when the kernel does not report it.
  int numa_node() const { return numa_node_; }

 private:
  CudaDevice(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status Fill();

  const CudaDriver& driver_;
  const int ordinal_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string uuid_;
  std::string name_;
  uint64_t total_bytes_ = 0;
  int numa_node_ = -1;
};

}  // namespace pinfeed
