// SPDX-License-Identifier: Apache-2.0
// The stand-in driver where it spoils the process, or reads the environment at its start: each case is a
// process of its own.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "client/kernels/convert_image.h"
#include "common/cuda/device_memory.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint64_t kGpuPage = uint64_t{2} << 20;

#define EXPECT_CHILD_PASSES(function) EXPECT_EXIT(function(), ::testing::ExitedWithCode(0), "")

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::_Exit(1);
}
#define REQUIRE(condition) Require(condition, #condition)

const CudaDriver& EnterFirstDevice() {
  static const auto device = CudaDevice::Open(0);
  REQUIRE(device.ok());
  static const auto scope = (*device)->Enter();
  return (*device)->driver();
}

[[noreturn]] void CopyFromUnregisteredMemory() {
  const CudaDriver& driver = EnterFirstDevice();
  CUdeviceptr memory = 0;
  REQUIRE(driver.cuMemAlloc(&memory, kGpuPage) == CUDA_SUCCESS);
  const char byte = 1;
  REQUIRE(driver.cuMemcpyHtoDAsync(memory, &byte, 1, nullptr) == CUDA_SUCCESS);
  REQUIRE(driver.cuStreamSynchronize(nullptr) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(driver.cuMemcpyHtoD(memory, &byte, 1) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(driver.cuMemFree(memory) == CUDA_ERROR_ILLEGAL_ADDRESS);
  std::_Exit(0);
}

[[noreturn]] void LaunchOverFreedMemory() {
  const CudaDriver& driver = EnterFirstDevice();
  CUdeviceptr memory = 0;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  REQUIRE(driver.cuMemAlloc(&memory, kGpuPage) == CUDA_SUCCESS && driver.cuMemFree(memory) == CUDA_SUCCESS);
  REQUIRE(driver.cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
  REQUIRE(driver.cuModuleGetFunction(&function, module, kConvertKernel1) == CUDA_SUCCESS);
  ConvertImage work{};
  work.source = reinterpret_cast<const uint8_t*>(memory);  // NOLINT(performance-no-int-to-ptr)
  work.out = reinterpret_cast<void*>(memory + 4096);       // NOLINT(performance-no-int-to-ptr)
  work.samples = work.height = work.width = work.channels = 1;
  void* parameters[] = {&work};
  REQUIRE(driver.cuLaunchKernel(function, 1, 1, 1, kConvertThreads, 1, 1, 0, nullptr, parameters, nullptr) ==
          CUDA_SUCCESS);
  REQUIRE(driver.cuStreamSynchronize(nullptr) == CUDA_ERROR_ILLEGAL_ADDRESS);
  std::_Exit(0);
}

[[noreturn]] void FailSecondSynchronisationForGood() {
  const ScopedEnv fail("PINFEED_STAND_IN_FAIL", "cuStreamSynchronize:2");
  const CudaDriver& driver = EnterFirstDevice();
  CUdeviceptr memory = 0;
  REQUIRE(driver.cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  REQUIRE(driver.cuStreamSynchronize(nullptr) == CUDA_ERROR_UNKNOWN);
  REQUIRE(driver.cuMemAlloc(&memory, 1) == CUDA_ERROR_UNKNOWN);
  std::_Exit(0);
}

[[noreturn]] void FailFirstAllocationOnly() {
  const ScopedEnv fail("PINFEED_STAND_IN_FAIL", "cuMemAlloc:1:2,cuMemFree:1:101");
  const CudaDriver& driver = EnterFirstDevice();
  CUdeviceptr memory = 0;
  REQUIRE(driver.cuMemAlloc(&memory, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(driver.cuMemAlloc(&memory, 1) == CUDA_SUCCESS);
  REQUIRE(driver.cuMemFree(memory) == CUDA_ERROR_INVALID_DEVICE);
  REQUIRE(driver.cuMemFree(memory) == CUDA_SUCCESS);
  std::_Exit(0);
}

[[noreturn]] void MistypeFailure() {
  const ScopedEnv fail("PINFEED_STAND_IN_FAIL", "cuMemAloc:1");
  REQUIRE(CudaDriver::Load().status().code() == Code::kUnavailable);
  std::_Exit(0);
}

[[noreturn]] void ShowDevicesInOtherOrder() {
  const ScopedEnv count("PINFEED_STAND_IN_GPUS", "4");
  const ScopedEnv bytes("PINFEED_STAND_IN_BYTES", "8388608");
  const ScopedEnv visible("CUDA_VISIBLE_DEVICES", "3,1,9,0");  // 9 ends the list
  const auto seen = CudaDevice::Count();
  REQUIRE(seen.ok() && *seen == 2);
  const auto first = CudaDevice::Open(0);
  REQUIRE(first.ok() && (*first)->uuid() == "GPU-70696e66-6565-6420-7374-616e64696e03");
  REQUIRE((*first)->total_bytes() == 4 * kGpuPage && (*first)->numa_node() == -1);
  const auto second = CudaDevice::UuidOf(1);
  REQUIRE(second.ok() && *second == "GPU-70696e66-6565-6420-7374-616e64696e01");
  REQUIRE(DeviceMemory::Create(*first, 5 * kGpuPage).status().code() == Code::kResourceExhausted);
  REQUIRE(DeviceMemory::Create(*first, 4 * kGpuPage).ok());
  std::_Exit(0);
}

[[noreturn]] void HideAllDevices() {
  const ScopedEnv visible("CUDA_VISIBLE_DEVICES", "");
  const auto loaded = CudaDriver::Load();
  REQUIRE(!loaded.ok() && loaded.status().message().find("CUDA_ERROR_NO_DEVICE") != std::string::npos);
  std::_Exit(0);
}

TEST(StandInCudaProcessTest, UnregisteredSourceBreaksTheContext) {
  EXPECT_CHILD_PASSES(CopyFromUnregisteredMemory);
}
TEST(StandInCudaProcessTest, KernelOverFreedMemoryBreaksTheContext) {
  EXPECT_CHILD_PASSES(LaunchOverFreedMemory);
}
TEST(StandInCudaProcessTest, AskedForFailureBreaksTheContext) {
  EXPECT_CHILD_PASSES(FailSecondSynchronisationForGood);
}
TEST(StandInCudaProcessTest, AskedForErrorPasses) {
  EXPECT_CHILD_PASSES(FailFirstAllocationOnly);
}
TEST(StandInCudaProcessTest, UnknownFunctionToFailIsAnError) {
  EXPECT_CHILD_PASSES(MistypeFailure);
}
TEST(StandInCudaProcessTest, VisibleDevicesAreRenumbered) {
  EXPECT_CHILD_PASSES(ShowDevicesInOtherOrder);
}
TEST(StandInCudaProcessTest, NoVisibleDeviceIsNoDriver) {
  EXPECT_CHILD_PASSES(HideAllDevices);
}

}  // namespace
}  // namespace pinfeed
