// SPDX-License-Identifier: Apache-2.0
// Device memory shared by two processes: created and exported by one, mapped by the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/cuda/device.h"

namespace pinfeed {

// A handle that lets other processes open device memory (backend cuda-ipc). Any process that has it can use
// it while the exporting process lives.
using IpcHandle = std::array<std::byte, sizeof(CUipcMemHandle)>;

// Purpose: one mapped range of device memory that is passed between processes. Either as a file descriptor
// (cuMemCreate, backend vmm-fd: Create, Export, Import), or as a 64-byte handle (cuMemAlloc, backend
// cuda-ipc: Allocate, Handle, Open).
// Owns: the mapping and its reference. Threads: immutable; any. Errors: those of the factories.
// Invariants:
// 1. Memory behind a descriptor lives until the last process releases it (documented at
//    cuMemExportToShareableHandle). Destruction does not wait for the GPU, so the owner first waits for its
//    own work on the memory.
// 2. With a handle, destruction waits until the GPU is idle in this process. The exporter must not destroy
//    the memory while another process may have it open (undefined behaviour): see Abandon.
class DeviceMemory {
 public:
  // Rounds `bytes` up to whole pages of the device. kInvalidArgument on overflow.
  static Result<uint64_t> WholePages(const CudaDevice& device, uint64_t bytes);
  // Allocates WholePages(bytes), readable and writable here.
  static Result<DeviceMemory> Create(std::shared_ptr<const CudaDevice> device, uint64_t bytes);
  static Result<DeviceMemory> Allocate(std::shared_ptr<const CudaDevice> device, uint64_t bytes);
  // Maps memory of another process; `fd` is from its Export. Precondition: `bytes` is the exact size.
  static Result<DeviceMemory> Import(std::shared_ptr<const CudaDevice> device, int fd, uint64_t bytes,
                                     bool read_only);
  // Maps memory of another live process by its Handle. The mapping is always writable.
  static Result<DeviceMemory> Open(std::shared_ptr<const CudaDevice> device, const IpcHandle& handle,
                                   uint64_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { (void)Drop(); }

  // Returns a descriptor for Import in other processes; it also keeps the memory alive. Precondition: from
  // Create.
  Result<UniqueFd> Export() const;
  // Lets another GPU of this process read the memory. Precondition: from Create.
  Status AllowReads(const CudaDevice& reader) const;
  // Returns a handle for Open in other processes. Precondition: from Allocate.
  Result<IpcHandle> Handle() const;
  // Like the destructor, but returns the error. An error means that the driver keeps the memory mapped until
  // this process exits. The object owns nothing afterwards.
  Status Free();
  // Releases ownership without freeing the memory, which then lives until the process exits.
  void Abandon() noexcept;

  CUdeviceptr address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  enum class Kind : uint8_t { kNone, kMapped, kAllocated, kOpened };
  Status Map(bool read_only);
  // By hand and not by members that release themselves: the steps have an order, all need the context, and
  // Free returns their first error.
  CUresult Drop() noexcept;
  CUresult Unmap() noexcept;

  std::shared_ptr<const CudaDevice> device_;
  Kind kind_ = Kind::kNone;
  CUmemGenericAllocationHandle allocation_ = 0;  // kMapped
  bool allocated_ = false;                       // kMapped
  bool mapped_ = false;                          // kMapped
  CUdeviceptr address_ = 0;
  uint64_t bytes_ = 0;
};

// Purpose: host memory that the GPU may read and write. Owns the registration, but not the memory, which must
// outlive it. Threads: immutable; any.
class HostRegistration {
 public:
  HostRegistration() = default;
  // Pins and maps [address, address + bytes) into the context of `device`.
  static Result<HostRegistration> Create(std::shared_ptr<const CudaDevice> device, void* address,
                                         uint64_t bytes);
  HostRegistration(HostRegistration&& other) noexcept { *this = std::move(other); }
  HostRegistration& operator=(HostRegistration&& other) noexcept;
  ~HostRegistration() { Drop(); }

  // The device address of the first byte.
  CUdeviceptr device_address() const { return device_address_; }

 private:
  // Called by the assignment before it takes the new device: the context must outlive the registration.
  void Drop() noexcept;
  std::shared_ptr<const CudaDevice> device_;
  void* address_ = nullptr;
  CUdeviceptr device_address_ = 0;
};

}  // namespace pinfeed
