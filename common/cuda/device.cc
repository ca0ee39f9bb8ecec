// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/device.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "common/base/ascii_case.h"

namespace pinfeed {
namespace {

std::string UuidText(const CUuuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

int NumaNodeOf(std::string pci_bus_id) {
  std::ranges::transform(pci_bus_id, pci_bus_id.begin(), AsciiLower);
  std::ifstream file("/sys/bus/pci/devices/" + pci_bus_id + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

Status CheckOrdinal(const CudaDriver& driver, int ordinal) {
  int count = 0;
  RETURN_IF_ERROR(CudaStatus(driver.cuDeviceGetCount(&count), "count the GPUs"));
  if (ordinal < 0 || ordinal >= count) {
    return InvalidArgument("device: there is no GPU " + std::to_string(ordinal) + "; this process sees " +
                           std::to_string(count) + " (CUDA_VISIBLE_DEVICES may hide some)");
  }
  return OkStatus();
}

}  // namespace

Result<int> CudaDevice::Count() {
  ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  int count = 0;
  RETURN_IF_ERROR(CudaStatus(driver->cuDeviceGetCount(&count), "count the GPUs"));
  return count;
}

Result<std::string> CudaDevice::UuidOf(int ordinal) {
  ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  RETURN_IF_ERROR(CheckOrdinal(*driver, ordinal));
  const std::string what = "read the UUID of GPU " + std::to_string(ordinal);
  CUdevice device = 0;
  CUuuid uuid{};
  RETURN_IF_ERROR(CudaStatus(driver->cuDeviceGet(&device, ordinal), what));
  RETURN_IF_ERROR(CudaStatus(driver->cuDeviceGetUuid(&uuid, device), what));
  return UuidText(uuid);
}

Result<std::shared_ptr<const CudaDevice>> CudaDevice::Open(int ordinal) {
  ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  RETURN_IF_ERROR(CheckOrdinal(*driver, ordinal));
  std::shared_ptr<CudaDevice> device(new CudaDevice(*driver, ordinal));
  ASSIGN_OR_RETURN(device->uuid_, UuidOf(ordinal));
  RETURN_IF_ERROR(device->Fill());
  return device;
}

Status CudaDevice::Fill() {
  const std::string what = "open GPU " + std::to_string(ordinal_) + " (" + uuid_ + ")";
  RETURN_IF_ERROR(CudaStatus(driver_.cuDeviceGet(&device_, ordinal_), what));
  std::array<char, 256> name{};
  RETURN_IF_ERROR(CudaStatus(driver_.cuDeviceGetName(name.data(), name.size() - 1, device_), what));
  name_ = name.data();
  size_t bytes = 0;
  RETURN_IF_ERROR(CudaStatus(driver_.cuDeviceTotalMem(&bytes, device_), what));
  total_bytes_ = bytes;
  std::array<char, 32> bus{};
  RETURN_IF_ERROR(CudaStatus(driver_.cuDeviceGetPCIBusId(bus.data(), bus.size() - 1, device_), what));
  numa_node_ = NumaNodeOf(bus.data());
  return CudaStatus(driver_.cuDevicePrimaryCtxRetain(&context_, device_),
                    what + ": create its primary context");
}

CudaDevice::~CudaDevice() {
  // Fails only when the driver is shutting down with the process.
  if (context_ != nullptr) (void)driver_.cuDevicePrimaryCtxRelease(device_);
}

// Takes another reference and never releases it. This fails only for a broken context, whose process must
// exit anyway.
void CudaDevice::KeepContext() const noexcept {
  CUcontext context = nullptr;
  (void)driver_.cuDevicePrimaryCtxRetain(&context, device_);
}

Result<CudaScope> CudaDevice::Enter() const {
  if (const CUresult entered = driver_.cuCtxPushCurrent(context_); entered != CUDA_SUCCESS)
    return CudaStatus(entered, "enter the context of GPU " + uuid_);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)driver_.cuThreadExchangeStreamCaptureMode(&mode);  // fails only for an invalid mode
  return CudaScope({this, mode});
}

void CudaScopeTraits::Close(Handle entered) noexcept {
  const CudaDriver& driver = entered.device->driver();
  (void)driver.cuThreadExchangeStreamCaptureMode(&entered.mode_before);
  CUcontext left = nullptr;
  (void)driver.cuCtxPopCurrent(&left);
}

}  // namespace pinfeed
