// SPDX-License-Identifier: Apache-2.0
// The stand-in's start and its GPUs. In: the environment. Out: devices, and the failures that were asked for.
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "tests/support/stand_in_cuda/stand_in.h"

namespace pinfeed::stand_in {
namespace {

constexpr uint64_t kMaxDevices = 64;
constexpr uint64_t kDefaultBytes = uint64_t{4} << 30;
constexpr std::string_view kUuid = "pinfeed standin";  // 15 bytes; the ordinal is the last
#define PF_STAND_IN_NAME(name) #name,
constexpr std::string_view kFunctions[] = {PF_CUDA_FUNCTIONS(PF_STAND_IN_NAME)};

// What a program asks for before it uses the GPU path; the figures are those of a Hopper.
constexpr std::pair<CUdevice_attribute, int> kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3}};

template <typename Number>
bool Parse(std::string_view text, Number& number) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size();
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t from = 0; from <= text.size();) {
    const size_t to = std::min(text.find(separator, from), text.size());
    parts.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  return parts;
}

bool NumberFromEnvironment(const char* name, uint64_t otherwise, uint64_t& number) {
  const char* const text = std::getenv(name);
  number = otherwise;
  if (text == nullptr || Parse(std::string_view(text), number)) return true;
  std::fprintf(stderr, "stand-in CUDA driver: %s=%s: not a number\n", name, text);
  return false;
}

bool ParseFaults(std::string_view text, std::vector<Fault>& faults) {
  for (const std::string_view part : Split(text, ',')) {
    const std::vector<std::string_view> words = Split(part, ':');
    Fault fault;
    fault.function = words[0];
    int result = 0;
    bool known = false;
    for (const std::string_view function : kFunctions) known |= function == fault.function;
    if (!known || words.size() < 2 || words.size() > 3 || !Parse(words[1], fault.calls_left) ||
        fault.calls_left == 0)
      return false;
    if (words.size() == 3 && words[2] == "hang") {
      fault.hangs = true;
    } else if (words.size() == 3) {
      if (!Parse(words[2], result)) return false;
      fault.result = static_cast<CUresult>(result);
    }
    faults.push_back(std::move(fault));
  }
  return true;
}

// The driver reads CUDA_VISIBLE_DEVICES up to the first entry that names no GPU.
std::vector<int> VisibleDevices(int count) {
  std::vector<int> visible;
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < count; ++i) visible.push_back(i);
    return visible;
  }
  for (const std::string_view part : Split(text, ',')) {
    int ordinal = 0;
    if (!Parse(part, ordinal) || ordinal < 0 || ordinal >= count) break;
    visible.push_back(ordinal);
  }
  return visible;
}

CUresult Initialise() PF_REQUIRES(g_state.mutex) {
  uint64_t count = 0;
  if (!NumberFromEnvironment("PINFEED_STAND_IN_GPUS", 1, count) || count > kMaxDevices ||
      !NumberFromEnvironment("PINFEED_STAND_IN_BYTES", kDefaultBytes, g_state.device_bytes) ||
      !NumberFromEnvironment("PINFEED_STAND_IN_PEERS", 1, g_state.peers) ||
      !NumberFromEnvironment("PINFEED_STAND_IN_STALL", 0, g_state.stalled_copy))
    return CUDA_ERROR_INVALID_VALUE;
  g_state.dirty = std::getenv("PINFEED_STAND_IN_DIRTY") != nullptr;
  const char* const capturing = std::getenv("PINFEED_STAND_IN_CAPTURING");
  g_state.capturing = capturing != nullptr && std::string_view(capturing) == "here";
  g_state.captured_elsewhere = capturing != nullptr && std::string_view(capturing) == "elsewhere";
  if (capturing != nullptr && !g_state.capturing && !g_state.captured_elsewhere)
    return CUDA_ERROR_INVALID_VALUE;
  g_state.takes_pageable = std::getenv("PINFEED_STAND_IN_PAGEABLE") != nullptr;
  const char* const faults = std::getenv("PINFEED_STAND_IN_FAIL");
  if (faults != nullptr && *faults != '\0' && !ParseFaults(faults, g_state.faults)) {
    std::fprintf(stderr,
                 "stand-in CUDA driver: PINFEED_STAND_IN_FAIL=%s: not FUNCTION:CALL[:ERROR|:hang],...\n",
                 faults);
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const int physical : VisibleDevices(static_cast<int>(count))) {
    auto device = std::make_unique<Device>();
    device->physical = physical;
    device->context.device = static_cast<CUdevice>(g_state.devices.size());
    g_state.devices.push_back(std::move(device));
  }
  return g_state.devices.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

}  // namespace

Device* DeviceOf(CUdevice device) {
  const auto& devices = g_state.devices;
  return device >= 0 && static_cast<size_t>(device) < devices.size()
             ? devices[static_cast<size_t>(device)].get()
             : nullptr;
}

CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  {
    const MutexLock lock(g_state.mutex);
    if (!g_state.initialised) g_state.initialised = Initialise();
  }
  PF_STAND_IN_CALL(cuInit);
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  PF_STAND_IN_CALL(cuDeviceGetCount);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(g_state.devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  PF_STAND_IN_CALL(cuDeviceGet);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (DeviceOf(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  PF_STAND_IN_CALL(cuDeviceGetName);
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (DeviceOf(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "Stand-in GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  PF_STAND_IN_CALL(cuDeviceGetUuid);
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Device* const known = DeviceOf(device);
  if (known == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  static_assert(sizeof uuid->bytes == kUuid.size() + 1);
  std::memcpy(uuid->bytes, kUuid.data(), kUuid.size());
  uuid->bytes[kUuid.size()] = static_cast<char>(known->physical);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  PF_STAND_IN_CALL(cuDeviceGetAttribute);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Device* const known = DeviceOf(device);
  if (known == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
    *value = known->physical;
    return CUDA_SUCCESS;
  }
  for (const auto& [name, figure] : kAttributes) {
    if (name != attribute) continue;
    *value = figure;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// A bus that no host has: there is nothing to find about it below /sys.
CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  PF_STAND_IN_CALL(cuDeviceGetPCIBusId);
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Device* const known = DeviceOf(device);
  if (known == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::array<char, 16> id{};
  const int needed =
      std::snprintf(id.data(), id.size(), "FFFF:%02X:1F.7", static_cast<unsigned>(known->physical));
  if (needed >= length) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(text, id.data(), static_cast<size_t>(needed) + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* possible, CUdevice device, CUdevice peer) {
  PF_STAND_IN_CALL(cuDeviceCanAccessPeer);
  if (possible == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (DeviceOf(device) == nullptr || DeviceOf(peer) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *possible = device != peer && g_state.peers != 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  PF_STAND_IN_CALL(cuDeviceTotalMem);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (DeviceOf(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = g_state.device_bytes;
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
