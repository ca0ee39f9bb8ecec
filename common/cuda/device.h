// SPDX-License-Identifier: Apache-2.0
// One GPU as this process sees it. In: an ordinal or a UUID. Out: its primary context, entered and left by
// scope.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/cuda/driver.h"

namespace pinfeed {

// Purpose: a GPU with its primary context, which it shares with the frameworks of the process. Owns one
// reference to that context. Threads: constant; any. Errors: those of Open. Invariant: the context lives
// while this does.
class CudaDevice {
 public:
  // All GPUs that this process may see (CUDA_VISIBLE_DEVICES counts): no context is made.
  static Result<int> Count();
  // "GPU-01234567-89ab-...", as nvidia-smi prints it: the name of a GPU that is the same in every process.
  static Result<std::string> UuidOf(int ordinal);
  // kInvalidArgument when there is no such ordinal.
  static Result<std::shared_ptr<const CudaDevice>> Open(int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDriver& driver() const { return driver_; }
  CUdevice handle() const { return device_; }
  CUcontext context() const { return context_; }
  // From now on the context lives as long as the process.
  void KeepContext() const noexcept;
  int ordinal() const { return ordinal_; }
  const std::string& uuid() const { return uuid_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  uint64_t total_bytes() const { return total_bytes_; }
  // -1 when the kernel does not say.
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

// Purpose: the device's context is this thread's current one within the scope; what was current before comes
// back. Threads: the one that made it.
class CudaScope {
 public:
  explicit CudaScope(const CudaDevice& device);
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;
  // Whether the context could be entered. Calls fail with CUDA_ERROR_INVALID_CONTEXT if not.
  Status status() const;

 private:
  const CudaDevice& device_;
  const CUresult result_;
};

}  // namespace pinfeed
