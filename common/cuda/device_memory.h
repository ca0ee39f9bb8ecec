// SPDX-License-Identifier: Apache-2.0
// Device memory that two processes share: made and exported by one, mapped by the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/cuda/device.h"

namespace pinfeed {

// What names a piece of memory to other processes (backend cuda-ipc): to whoever has it, as long as its maker
// lives.
using IpcHandle = std::array<std::byte, sizeof(CUipcMemHandle)>;

// Purpose: one mapped piece of device memory that goes from process to process: as a file descriptor
// (cuMemCreate, backend vmm-fd: Create, Export, Import) or as a handle of 64 bytes (cuMemAlloc, backend
// cuda-ipc: Allocate, Handle, Open). Owns mapping and reference. Threads: constant; any. Errors: of the
// factories. Invariants: 1. memory behind a descriptor lives until the last process lets go (documented at
// cuMemExportToShareableHandle), and destruction does not wait for the GPU: the owner first waits for its own
// work on the memory; 2. with a handle, destruction waits until the GPU is idle in this process, and its
// maker must not destroy it while another process may have it open (undefined): see Abandon.
class DeviceMemory {
 public:
  // What `bytes` of memory take up: whole pages of the device. kInvalidArgument when that is no number.
  static Result<uint64_t> WholePages(const CudaDevice& device, uint64_t bytes);
  // New memory of WholePages(bytes), readable and writable here.
  static Result<DeviceMemory> Create(std::shared_ptr<const CudaDevice> device, uint64_t bytes);
  static Result<DeviceMemory> Allocate(std::shared_ptr<const CudaDevice> device, uint64_t bytes);
  // Memory that another process made: `fd` from its Export. Precondition: `bytes` is its exact size.
  static Result<DeviceMemory> Import(std::shared_ptr<const CudaDevice> device, int fd, uint64_t bytes,
                                     bool read_only);
  // Memory that another living process made: its Handle. It is writable here, whatever one wants.
  static Result<DeviceMemory> Open(std::shared_ptr<const CudaDevice> device, const IpcHandle& handle,
                                   uint64_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { (void)Drop(); }

  // A descriptor that others can Import; it keeps the memory alive too. Precondition: from Create.
  Result<UniqueFd> Export() const;
  // Lets another GPU of this process read it. Precondition: from Create.
  Status AllowReads(const CudaDevice& reader) const;
  // For others to Open. Precondition: from Allocate.
  Result<IpcHandle> Handle() const;
  // What destruction does, told of: an error means that the driver still has the memory mapped, until this
  // process ends. Nothing is owned afterwards, whatever came of it.
  Status Free();
  // Forgets the memory without freeing it: it goes with the process.
  void Abandon() noexcept;

  CUdeviceptr address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  enum class Kind : uint8_t { kNone, kMapped, kAllocated, kOpened };
  Status Map(bool read_only);
  CUresult Drop() noexcept;
  CUresult Unmap() noexcept;

  std::shared_ptr<const CudaDevice> device_;
  Kind kind_ = Kind::kNone;
  CUmemGenericAllocationHandle allocation_ = 0;  // kMapped
  bool allocated_ = false;                       // likewise
  bool mapped_ = false;                          // likewise
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
