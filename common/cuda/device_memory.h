// SPDX-License-Identifier: Apache-2.0
// Device memory that two processes share: made and exported by one, mapped by the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/cuda/device.h"
#include "common/result.h"
#include "common/unique_handle.h"

namespace pinfeed {

// Purpose: one mapped piece of device memory that goes from process to process as a file descriptor
// (cuMemCreate, backend vmm-fd). Owns mapping and reference. The memory itself lives until the last process
// lets go (documented at cuMemExportToShareableHandle). Threads: constant; any. Errors: of the factories.
// Invariant: destruction does not wait for the GPU: the owner first waits for its own work on the memory.
class DeviceMemory {
 public:
  // New memory of at least `bytes` (rounded up to whole pages of the device), readable and writable here.
  static Result<DeviceMemory> Create(std::shared_ptr<const CudaDevice> device, uint64_t bytes);
  // Memory that another process made: `fd` from its Export. Precondition: `bytes` is its exact size.
  static Result<DeviceMemory> Import(std::shared_ptr<const CudaDevice> device, int fd, uint64_t bytes,
                                     bool read_only);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { Drop(); }

  // A descriptor that others can Import; it keeps the memory alive too.
  Result<UniqueFd> Export() const;

  CUdeviceptr address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Status Map(bool read_only);
  void Drop() noexcept;

  std::shared_ptr<const CudaDevice> device_;
  CUmemGenericAllocationHandle allocation_ = 0;
  bool allocated_ = false;
  bool mapped_ = false;
  CUdeviceptr address_ = 0;
  uint64_t bytes_ = 0;
};

// Purpose: host memory that the GPU may read and write. Owns the registration, not the memory, which must
// outlive it. Threads: constant; any.
class HostRegistration {
 public:
  HostRegistration() = default;
  // Pins and maps [address, address + bytes) into the context of `device`.
  static Result<HostRegistration> Create(std::shared_ptr<const CudaDevice> device, void* address,
                                         uint64_t bytes);
  HostRegistration(HostRegistration&& other) noexcept { *this = std::move(other); }
  HostRegistration& operator=(HostRegistration&& other) noexcept;
  ~HostRegistration() { Drop(); }

  // Where the GPU sees the first byte.
  CUdeviceptr device_address() const { return device_address_; }

 private:
  void Drop() noexcept;
  std::shared_ptr<const CudaDevice> device_;
  void* address_ = nullptr;
  CUdeviceptr device_address_ = 0;
};

}  // namespace pinfeed
