// SPDX-License-Identifier: Apache-2.0
// Copies to a GPU without a daemon, over the stand-in driver, whose device memory can be read here.
#include "client/copies/device_copier.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "client/copies/copy_ring.h"
#include "common/cuda/device_memory.h"
#include "common/cuda/stream.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Noise(size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, count - at));
  }
  return bytes;
}

// A GPU with a stream and memory for a target.
struct Gpu {
  explicit Gpu(uint64_t bytes)
      : device(*CudaDevice::Open(0)), memory(*DeviceMemory::Allocate(device, bytes)) {
    const auto scope = device->Enter();
    CUstream made = nullptr;
    PF_CHECK(device->driver().cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS,
             "a stream");
    stream.reset({device.get(), made});
  }
  void* native() const { return stream.get().native; }
  void Await() const {
    const auto scope = device->Enter();
    EXPECT_EQ(device->driver().cuStreamSynchronize(stream.get().native), CUDA_SUCCESS);
  }
  // What the GPU has there now.
  Bytes Read(uint64_t offset, uint64_t bytes) const {
    const auto* const begin = reinterpret_cast<const std::byte*>(  // NOLINT(performance-no-int-to-ptr)
        memory.address() + offset);
    return {begin, begin + bytes};
  }
  HostCopy To(uint64_t offset, const Bytes& source) const {
    return {source.data(), source.size(), memory.address() + offset, source.size()};
  }

  std::shared_ptr<const CudaDevice> device;
  DeviceMemory memory;
  UniqueCudaStream stream;
};

std::unique_ptr<DeviceCopier> Copier(uint32_t threads, uint64_t ring_bytes) {
  return *MakeDeviceCopier(0, {.threads = threads, .ring_bytes = ring_bytes});
}

TEST(DeviceCopierTest, MuchPassesThroughASmallRing) {
  const Gpu gpu(uint64_t{24} << 20);
  const std::unique_ptr<DeviceCopier> copier = Copier(3, 2 * CopyRing::kSlotBytes);
  const Bytes first = Noise((9 << 20) + 7, 1);
  const Bytes second = Noise(5000, 2);
  const Bytes third = Noise((6 << 20) + 1, 3);
  const uint64_t at = 9 << 20 | 512;
  const std::vector<HostCopy> copies{gpu.To(0, first), gpu.To(at, second), gpu.To(at + 8192, third)};
  ASSERT_OK(copier->Copy(copies, gpu.native(), true));
  gpu.Await();
  EXPECT_EQ(gpu.Read(0, first.size()), first);
  EXPECT_EQ(gpu.Read(at, second.size()), second);
  EXPECT_EQ(gpu.Read(at + 8192, third.size()), third);
}

TEST(DeviceCopierTest, SourcesMayChangeWhenTheCallHasReturned) {
  const Gpu gpu(uint64_t{8} << 20);
  const std::unique_ptr<DeviceCopier> copier = Copier(2, 8 * CopyRing::kSlotBytes);
  const Bytes was = Noise(8 << 20, 4);
  Bytes source = was;
  ASSERT_OK(copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), false));
  std::memset(source.data(), 0, source.size());
  gpu.Await();
  EXPECT_EQ(gpu.Read(0, was.size()), was);
}

TEST(DeviceCopierTest, WhatIsBehindTheBytesBecomesZeros) {
  const Gpu gpu(1024);
  const std::unique_ptr<DeviceCopier> copier = Copier(1, 0);
  const Bytes full(1024, std::byte{0xee});
  const Bytes source = Noise(100, 5);
  ASSERT_OK(copier->Copy(std::vector{gpu.To(0, full)}, gpu.native(), true));
  ASSERT_OK(copier->Copy(std::vector<HostCopy>{{source.data(), 100, gpu.memory.address(), 512}}, gpu.native(),
                         true));
  gpu.Await();
  Bytes expected = source;
  expected.resize(512);
  expected.resize(1024, std::byte{0xee});
  EXPECT_EQ(gpu.Read(0, 1024), expected);
}

TEST(DeviceCopierTest, ThreadsShareOneCopier) {
  constexpr uint64_t kBytes = (3 << 20) + 11;
  const Gpu gpu(4 * (kBytes + 512));
  const std::unique_ptr<DeviceCopier> copier = Copier(3, 3 * CopyRing::kSlotBytes);
  std::vector<std::jthread> callers;  // joined below
  callers.reserve(4);
  for (unsigned number = 0; number < 4; ++number) {
    callers.emplace_back([&, number] {
      for (unsigned round = 0; round < 5; ++round) {
        const Bytes source = Noise(kBytes, 10 * number + round);
        EXPECT_OK(copier->Copy(std::vector{gpu.To(number * (kBytes + 512), source)}, gpu.native(), true));
      }
    });
  }
  callers.clear();
  gpu.Await();
  for (unsigned number = 0; number < 4; ++number)
    EXPECT_EQ(gpu.Read(number * (kBytes + 512), kBytes), Noise(kBytes, 10 * number + 4));
}

TEST(DeviceCopierTest, PageLockedSourceHasBeenReadWhenTheCallReturns) {
  const Gpu gpu(uint64_t{16} << 20);
  const std::unique_ptr<DeviceCopier> copier = Copier(2, 0);
  Bytes source = Noise(16 << 20, 6);
  ASSERT_OK_AND_ASSIGN(const HostRegistration registration,
                       HostRegistration::Create(gpu.device, source.data(), source.size()));
  ASSERT_OK_AND_ASSIGN(const uint32_t reading,
                       copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), true));
  EXPECT_EQ(reading, 0U);
  EXPECT_EQ(gpu.Read(0, source.size()), source);  // without a wait for the stream
}

TEST(DeviceCopierTest, SourceThatIsPageLockedInPartPassesThroughTheRing) {
  const Gpu gpu(uint64_t{1} << 20);
  const std::unique_ptr<DeviceCopier> copier = Copier(1, 0);
  Bytes source = Noise(1 << 20, 7);
  ASSERT_OK_AND_ASSIGN(const HostRegistration registration,
                       HostRegistration::Create(gpu.device, source.data(), source.size() / 2));
  ASSERT_OK_AND_ASSIGN(const uint32_t reading,
                       copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), false));
  EXPECT_EQ(reading, 0U);
  gpu.Await();
  EXPECT_EQ(gpu.Read(0, source.size()), source);
}

// Its name means the stream of the thread that uses it.
TEST(DeviceCopierTest, TheStreamOfTheCallingThreadIsNotTakenForThatOfAHelper) {
  const uint64_t bytes = 6 * CopyRing::kSlotBytes;
  const Gpu gpu(bytes);
  const std::unique_ptr<DeviceCopier> copier = Copier(4, 0);
  const Bytes source = Noise(bytes, 20);
  ASSERT_OK(copier->Copy(std::vector{gpu.To(0, source)}, CU_STREAM_PER_THREAD, true));
  const auto scope = gpu.device->Enter();
  ASSERT_EQ(gpu.device->driver().cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  EXPECT_EQ(gpu.Read(0, bytes), source);
}

TEST(DeviceCopierTest, GpuThatIsNotThereIsRefused) {
  EXPECT_THAT(MakeDeviceCopier(99, {}), StatusIs(Code::kInvalidArgument, HasSubstr("there is no GPU 99")));
}

TEST(DeviceCopierTest, StreamWithoutWorkIsIdle) {
  const Gpu gpu(4096);
  const std::unique_ptr<DeviceCopier> copier = Copier(1, 0);
  gpu.Await();
  ASSERT_OK_AND_ASSIGN(const StreamState state, copier->State(gpu.native()));
  EXPECT_EQ(state, StreamState::kIdle);
}

// With faults of the driver, which it reads once: in processes of their own.
class DeviceCopierDeathTest : public ::testing::Test {
 protected:
  DeviceCopierDeathTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
  static void Fail(const char* fault) { ::setenv("PINFEED_STAND_IN_FAIL", fault, 1); }
  static void Say(const Status& status) { std::fprintf(stderr, "%s\n", status.ToString().c_str()); }
};

TEST_F(DeviceCopierDeathTest, CopyThatFailsIsAnErrorAndTheNextOneWorks) {
  EXPECT_EXIT(
      {
        Fail("cuMemcpyHtoDAsync:3:2");
        const Gpu gpu(uint64_t{8} << 20);
        const std::unique_ptr<DeviceCopier> copier = Copier(2, 2 * CopyRing::kSlotBytes);
        const Bytes source = Noise(8 << 20, 8);
        Say(copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), true).status());
        const bool copied = copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), true).ok();
        gpu.Await();
        std::_Exit(copied && gpu.Read(0, source.size()) == source ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "RESOURCE_EXHAUSTED: copy to GPU GPU-.*CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(DeviceCopierDeathTest, SlotWhoseEventFailsIsNotLost) {
  EXPECT_EXIT(
      {
        Fail("cuEventRecord:1:2");
        const Gpu gpu(uint64_t{1} << 20);
        const std::unique_ptr<DeviceCopier> copier = Copier(1, CopyRing::kSlotBytes);  // of one slot
        const Bytes source = Noise(1 << 20, 9);
        Say(copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), true).status());
        std::_Exit(copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), true).ok() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "RESOURCE_EXHAUSTED: copy to GPU");
}

TEST_F(DeviceCopierDeathTest, RingThatCannotBePageLockedIsAnError) {
  EXPECT_EXIT(
      {
        Fail("cuMemHostRegister:1:2");
        const Gpu gpu(4096);
        const std::unique_ptr<DeviceCopier> copier = Copier(1, 0);
        const Bytes source = Noise(4096, 10);
        Say(copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), true).status());
        std::_Exit(copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), true).ok() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "RESOURCE_EXHAUSTED: register 33554432 bytes of host memory");
}

TEST_F(DeviceCopierDeathTest, RingThatCannotGrowStillCopies) {
  EXPECT_EXIT(
      {
        Fail("cuMemHostRegister:2:2");
        const uint64_t bytes = 12 * CopyRing::kSlotBytes;
        const Gpu gpu(bytes);
        const std::unique_ptr<DeviceCopier> copier = Copier(2, 0);
        const Bytes source = Noise(bytes, 21);
        Say(copier->Copy(std::vector{gpu.To(0, Bytes(4096))}, gpu.native(), true).status());
        Say(copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), true).status());
        gpu.Await();
        std::_Exit(gpu.Read(0, bytes) == source ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "^OK\nOK\n$");
}

TEST_F(DeviceCopierDeathTest, StreamThatIsBeingCapturedIsRefused) {
  EXPECT_EXIT(
      {
        ::setenv("PINFEED_STAND_IN_CAPTURING", "here", 1);
        const Gpu gpu(4096);
        const std::unique_ptr<DeviceCopier> copier = Copier(1, 0);
        const Bytes source = Noise(4096, 11);
        Say(copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), true).status());
        std::_Exit(*copier->State(gpu.native()) == StreamState::kCapturing ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "FAILED_PRECONDITION: the stream is being captured");
}

TEST_F(DeviceCopierDeathTest, CaptureInAnotherThreadIsLeftAlone) {
  EXPECT_EXIT(
      {
        ::setenv("PINFEED_STAND_IN_CAPTURING", "elsewhere", 1);
        const uint64_t bytes = 3 * CopyRing::kSlotBytes;
        const Gpu gpu(bytes);
        const Bytes source = Noise(bytes, 12);
        for (int i = 0; i < 2; ++i) {
          const std::unique_ptr<DeviceCopier> copier = Copier(2, 0);
          Say(copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), false).status());
        }
        Say(Copier(1, 0)->State(gpu.native()).status());
        std::_Exit(gpu.Read(0, bytes) == source ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "^OK\nOK\nOK\n$");
}

TEST_F(DeviceCopierDeathTest, NonBlockingCopyOfPageLockedMemoryDoesNotWait) {
  EXPECT_EXIT(
      {
        ::setenv("PINFEED_STAND_IN_STALL", "1", 1);  // the copy never ends
        const Gpu gpu(uint64_t{1} << 20);
        const std::unique_ptr<DeviceCopier> copier = Copier(1, 0);
        Bytes source = Noise(1 << 20, 12);
        const HostRegistration registration =
            *HostRegistration::Create(gpu.device, source.data(), source.size());
        const uint32_t reading = *copier->Copy(std::vector{gpu.To(0, source)}, gpu.native(), false);
        const StreamState state = *copier->State(gpu.native());
        std::_Exit(reading == 1 && state == StreamState::kBusy ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace pinfeed
