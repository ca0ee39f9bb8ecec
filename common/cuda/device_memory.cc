// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/device_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "common/base/round_up.h"

namespace pinfeed {
namespace {

CUmemAllocationProp Properties(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

// Smaller allocations may share a page with others, which an IPC handle would then expose as well.
constexpr uint64_t kHandlePage = uint64_t{2} << 20;

std::string Describe(uint64_t bytes, const CudaDevice& device) {
  return std::to_string(bytes) + " bytes on GPU " + device.uuid();
}

}  // namespace

Result<uint64_t> DeviceMemory::WholePages(const CudaDevice& device, uint64_t bytes) {
  const CUmemAllocationProp properties = Properties(device.handle());
  size_t granularity = 0;
  RETURN_IF_ERROR(CudaStatus(device.driver().cuMemGetAllocationGranularity(&granularity, &properties,
                                                                           CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                             "get the page size of GPU " + device.uuid()));
  const uint64_t page = std::max<uint64_t>(granularity, kHandlePage);  // both are powers of two
  if (bytes > UINT64_MAX - page)
    return InvalidArgument("allocate " + Describe(bytes, device) + ": too large");
  return RoundUp(bytes, page);
}

Result<DeviceMemory> DeviceMemory::Create(std::shared_ptr<const CudaDevice> device, uint64_t bytes) {
  const CudaDriver& driver = device->driver();
  ASSIGN_OR_RETURN(const CudaScope scope, device->Enter());
  const CUmemAllocationProp properties = Properties(device->handle());
  DeviceMemory memory;
  ASSIGN_OR_RETURN(memory.bytes_, WholePages(*device, bytes));
  memory.kind_ = Kind::kMapped;
  memory.device_ = std::move(device);
  RETURN_IF_ERROR(CudaStatus(driver.cuMemCreate(&memory.allocation_, memory.bytes_, &properties, 0),
                             "allocate " + Describe(memory.bytes_, *memory.device_)));
  memory.allocated_ = true;
  RETURN_IF_ERROR(memory.Map(false));
  return memory;
}

Result<DeviceMemory> DeviceMemory::Import(std::shared_ptr<const CudaDevice> device, int fd, uint64_t bytes,
                                          bool read_only) {
  const CudaDriver& driver = device->driver();
  ASSIGN_OR_RETURN(const CudaScope scope, device->Enter());
  DeviceMemory memory;
  memory.kind_ = Kind::kMapped;
  memory.device_ = std::move(device);
  memory.bytes_ = bytes;
  // The driver expects the descriptor's number in a pointer argument.
  void* const handle =
      reinterpret_cast<void*>(static_cast<uintptr_t>(fd));  // NOLINT(performance-no-int-to-ptr)
  RETURN_IF_ERROR(CudaStatus(driver.cuMemImportFromShareableHandle(&memory.allocation_, handle,
                                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                             "import " + Describe(bytes, *memory.device_)));
  memory.allocated_ = true;
  RETURN_IF_ERROR(memory.Map(read_only));
  return memory;
}

Result<DeviceMemory> DeviceMemory::Allocate(std::shared_ptr<const CudaDevice> device, uint64_t bytes) {
  ASSIGN_OR_RETURN(const CudaScope scope, device->Enter());
  DeviceMemory memory;
  ASSIGN_OR_RETURN(memory.bytes_, WholePages(*device, bytes));
  memory.device_ = std::move(device);
  RETURN_IF_ERROR(CudaStatus(memory.device_->driver().cuMemAlloc(&memory.address_, memory.bytes_),
                             "allocate " + Describe(memory.bytes_, *memory.device_)));
  memory.kind_ = Kind::kAllocated;
  return memory;
}

Result<DeviceMemory> DeviceMemory::Open(std::shared_ptr<const CudaDevice> device, const IpcHandle& handle,
                                        uint64_t bytes) {
  ASSIGN_OR_RETURN(const CudaScope scope, device->Enter());
  CUipcMemHandle native;
  std::memcpy(&native, handle.data(), sizeof native);
  DeviceMemory memory;
  memory.device_ = std::move(device);
  memory.bytes_ = bytes;
  RETURN_IF_ERROR(CudaStatus(memory.device_->driver().cuIpcOpenMemHandle(&memory.address_, native,
                                                                         CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                             "open the IPC handle of " + Describe(bytes, *memory.device_)));
  memory.kind_ = Kind::kOpened;
  return memory;
}

Result<IpcHandle> DeviceMemory::Handle() const {
  ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
  CUipcMemHandle native{};
  RETURN_IF_ERROR(CudaStatus(device_->driver().cuIpcGetMemHandle(&native, address_),
                             "create an IPC handle of " + Describe(bytes_, *device_)));
  IpcHandle handle{};
  std::memcpy(handle.data(), &native, sizeof native);
  return handle;
}

Status DeviceMemory::Map(bool read_only) {
  const CudaDriver& driver = device_->driver();
  const std::string what = "map " + Describe(bytes_, *device_);
  RETURN_IF_ERROR(CudaStatus(driver.cuMemAddressReserve(&address_, bytes_, 0, 0, 0), what));
  RETURN_IF_ERROR(CudaStatus(driver.cuMemMap(address_, bytes_, 0, allocation_, 0), what));
  mapped_ = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_->handle();
  access.flags = read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CudaStatus(driver.cuMemSetAccess(address_, bytes_, &access, 1), what);
}

Status DeviceMemory::AllowReads(const CudaDevice& reader) const {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = reader.handle();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  return CudaStatus(device_->driver().cuMemSetAccess(address_, bytes_, &access, 1),
                    "let GPU " + reader.uuid() + " read " + Describe(bytes_, *device_));
}

Result<UniqueFd> DeviceMemory::Export() const {
  int fd = -1;
  RETURN_IF_ERROR(CudaStatus(device_->driver().cuMemExportToShareableHandle(
                                 &fd, allocation_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                             "export " + Describe(bytes_, *device_)));
  return UniqueFd(fd);
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  (void)Drop();
  device_ = std::move(other.device_);
  kind_ = std::exchange(other.kind_, Kind::kNone);
  allocation_ = other.allocation_;
  allocated_ = std::exchange(other.allocated_, false);
  mapped_ = std::exchange(other.mapped_, false);
  address_ = std::exchange(other.address_, 0);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

// Keeps the context alive: releasing its last reference would free the memory.
void DeviceMemory::Abandon() noexcept {
  kind_ = Kind::kNone;
  if (device_ != nullptr) device_->KeepContext();
  device_.reset();
}

Status DeviceMemory::Free() {
  if (device_ == nullptr) return OkStatus();
  return CudaStatus(Drop(), "free " + Describe(bytes_, *device_));
}

// Errors mean that the context is broken. The memory is then freed when the process exits.
CUresult DeviceMemory::Drop() noexcept {
  if (device_ == nullptr) return CUDA_SUCCESS;
  const CudaDriver& driver = device_->driver();
  const auto scope = device_->Enter();
  switch (std::exchange(kind_, Kind::kNone)) {
    case Kind::kNone:
      break;
    case Kind::kMapped:
      return Unmap();
    case Kind::kAllocated:
      return driver.cuMemFree(address_);
    case Kind::kOpened:
      return driver.cuIpcCloseMemHandle(address_);
  }
  return CUDA_SUCCESS;
}

// Continues after an error and returns the first one.
CUresult DeviceMemory::Unmap() noexcept {
  const CudaDriver& driver = device_->driver();
  CUresult first = CUDA_SUCCESS;
  const auto note = [&first](CUresult result) {
    if (first == CUDA_SUCCESS) first = result;
  };
  if (std::exchange(mapped_, false)) note(driver.cuMemUnmap(address_, bytes_));
  if (address_ != 0) note(driver.cuMemAddressFree(std::exchange(address_, 0), bytes_));
  if (std::exchange(allocated_, false)) note(driver.cuMemRelease(allocation_));
  return first;
}

Result<HostRegistration> HostRegistration::Create(std::shared_ptr<const CudaDevice> device, void* address,
                                                  uint64_t bytes) {
  const CudaDriver& driver = device->driver();
  const auto scope = device->Enter();
  const std::string what =
      "register " + std::to_string(bytes) + " bytes of host memory with GPU " + device->uuid();
  RETURN_IF_ERROR(scope.status());
  RETURN_IF_ERROR(CudaStatus(
      driver.cuMemHostRegister(address, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
      what));
  HostRegistration registration;
  registration.device_ = std::move(device);
  registration.address_ = address;
  RETURN_IF_ERROR(
      CudaStatus(driver.cuMemHostGetDevicePointer(&registration.device_address_, address, 0), what));
  return registration;
}

HostRegistration& HostRegistration::operator=(HostRegistration&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  device_ = std::move(other.device_);
  address_ = std::exchange(other.address_, nullptr);
  device_address_ = std::exchange(other.device_address_, 0);
  return *this;
}

void HostRegistration::Drop() noexcept {
  if (address_ == nullptr) return;
  const auto scope = device_->Enter();
  // Fails only if the context is broken.
  (void)device_->driver().cuMemHostUnregister(std::exchange(address_, nullptr));
}

}  // namespace pinfeed
