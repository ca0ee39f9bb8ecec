// SPDX-License-Identifier: Apache-2.0
// The client's end of an arena on a GPU, over both backends, with another process that lends it.
#include "client/src/gpu/device_slots.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/cuda/device_memory.h"
#include "tests/unit/memory/gpu/stand_in_peer.h"

namespace pinfeed {
namespace {

class DeviceSlotsTest : public ::testing::TestWithParam<Backend> {
 protected:
  static void SetUpTestSuite() {
    ::setenv("PINFEED_STAND_IN_GPUS", "2", 1);
    // The second kernel of the one test that launches any, over each backend.
    ::setenv("PINFEED_STAND_IN_FAIL", "cuLaunchKernel:2:1,cuLaunchKernel:4:1", 1);
  }

  DeviceSlotsTest() {
    void* const page =
        ::mmap(nullptr, kReleasePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PF_CHECK(page != MAP_FAILED, "map a page");
    page_ = static_cast<ReleasePage*>(page);
    offer_.backend = GetParam();
    offer_.slot_count = 3;
    offer_.layout.slot_stride = 4096;
    offer_.arena_bytes = uint64_t{2} << 20;
    offer_.arena_id.fill(std::byte{'i'});
  }
  ~DeviceSlotsTest() override { ::munmap(page_, kReleasePageBytes); }

  // What the peer lends, into the offer.
  void Receive(const Peer& peer) {
    if (GetParam() == Backend::kVmmFd) {
      fd_ = peer.ReceiveFd();
      ASSERT_TRUE(fd_);
    } else {
      ASSERT_EQ(::read(peer.socket(), offer_.ipc_handle.data(), offer_.ipc_handle.size()), 64);
    }
  }
  const char* LendTask() const { return GetParam() == Backend::kVmmFd ? "lend-fd" : "lend-handle"; }
  Result<std::unique_ptr<DeviceSlots>> Map() {
    return MapDeviceSlots(offer_, 0, std::move(fd_), page_, kReleasePageBytes);
  }

  FeedOffer offer_;
  UniqueFd fd_;
  ReleasePage* page_ = nullptr;
};

TEST_P(DeviceSlotsTest, MapsWhatIsLentAndReleasesInTheOrderOfAStream) {
  Peer peer(LendTask());
  Receive(peer);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlots> slots, Map());
  BatchDescriptor batch{};
  batch.slot = 2;
  batch.generation = 7;
  ASSERT_OK(slots->Release(batch, nullptr));
  EXPECT_OK(slots->Unmap(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
  EXPECT_EQ(page_->slots[2].generation.load(), 7U);
  EXPECT_EQ(peer.Dismiss(), 0);
}

// What breaks the context, or cannot be undone, is done in processes of their own.
class DeviceSlotsDeathTest : public DeviceSlotsTest {
 protected:
  static constexpr uint64_t kLongBytes = uint64_t{64} << 20;

  DeviceSlotsDeathTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
  // Ends the process with what `unmapped` says.
  [[noreturn]] static void Tell(const Status& unmapped) {
    std::fprintf(stderr, "%s\n", unmapped.ToString().c_str());
    std::_Exit(unmapped.ok() ? 0 : 3);
  }
  // Has the GPU busy with so many copies of some 10 ms, on the NULL stream.
  static void PutLongWork(const CudaDevice& device, CUdeviceptr memory, int copies) {
    const auto scope = device.Enter();
    for (int i = 0; i < copies; ++i) {
      PF_CHECK(
          device.driver().cuMemcpyDtoDAsync(memory, memory + kLongBytes, kLongBytes, nullptr) == CUDA_SUCCESS,
          "copy");
    }
  }
};

TEST_P(DeviceSlotsDeathTest, BrokenContextEndsTheWaitForReleases) {
  EXPECT_EXIT(
      {
        ::alarm(20);
        const Peer peer(LendTask());
        Receive(peer);
        const std::unique_ptr<DeviceSlots> slots = *Map();
        const std::shared_ptr<const CudaDevice> device = *CudaDevice::Open(0);
        const DeviceMemory memory = *DeviceMemory::Allocate(device, 2 * kLongBytes);
        PutLongWork(*device, memory.address(), 32);  // so that the release is put before it fails
        {
          const auto scope = device->Enter();
          PF_CHECK(device->driver().cuMemcpyDtoDAsync(1, 2, 1, nullptr) == CUDA_SUCCESS,
                   "copy what is not there");
        }
        BatchDescriptor batch{};
        batch.generation = 7;
        PF_CHECK(slots->Release(batch, nullptr).ok(), "it is put behind what will fail");
        Tell(slots->Unmap(std::chrono::steady_clock::now() + std::chrono::hours(1)));
      },
      ::testing::ExitedWithCode(3), "INTERNAL: use GPU GPU-.*CUDA_ERROR_ILLEGAL_ADDRESS");
}

TEST_P(DeviceSlotsDeathTest, ReleaseThatIsLateIsNoFaultOfTheContext) {
  EXPECT_EXIT(
      {
        const Peer peer(LendTask());
        Receive(peer);
        const std::unique_ptr<DeviceSlots> slots = *Map();
        const std::shared_ptr<const CudaDevice> device = *CudaDevice::Open(0);
        const DeviceMemory memory = *DeviceMemory::Allocate(device, 2 * kLongBytes);
        PutLongWork(*device, memory.address(), 1000);
        BatchDescriptor batch{};
        batch.generation = 7;
        PF_CHECK(slots->Release(batch, nullptr).ok(), "it is put behind what takes long");
        Tell(slots->Unmap(std::chrono::steady_clock::now() + std::chrono::milliseconds(100)));
      },
      ::testing::ExitedWithCode(3),
      "DEADLINE_EXCEEDED: GPU GPU-.* has not finished the work that uses them in time");
}

TEST_P(DeviceSlotsDeathTest, MemoryThatTheDriverKeepsMappedIsNoFarewell) {
  EXPECT_EXIT(
      {
        ::setenv("PINFEED_STAND_IN_FAIL", "cuMemUnmap:1:719,cuIpcCloseMemHandle:1:719", 1);
        const Peer peer(LendTask());
        Receive(peer);
        Tell((*Map())->Unmap(std::chrono::steady_clock::now() + std::chrono::hours(1)));
      },
      ::testing::ExitedWithCode(3), "INTERNAL: free 2097152 bytes on GPU .*CUDA_ERROR_LAUNCH_FAILED");
}

// Whoever has the error may give the slot back at once, and with it what the first kernel reads.
TEST_P(DeviceSlotsTest, WriteThatFailsHalfwayLeavesNothingRunning) {
  constexpr uint8_t kWritten = 7;
  constexpr uint64_t kLongBytes = uint64_t{256} << 20;
  Peer peer(LendTask());
  Receive(peer);
  offer_.layout.batch_size = 4;
  offer_.layout.tensors = {{{"image", DType::kUint8, {1, 4, 4}}, 0, 16}};
  OfferedImage image;
  image.height = image.width = 4;
  image.channels = 1;
  image.table.assign(256, kWritten);
  offer_.outputs.assign(2, {{"image", DType::kUint8, {1, 4, 4}}, 0, image});
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlots> slots, Map());
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const CudaDevice> device, CudaDevice::Open(0));
  ASSERT_OK_AND_ASSIGN(const DeviceMemory memory, DeviceMemory::Allocate(device, 2 * kLongBytes));
  const auto scope = device->Enter();
  // Long enough for the kernels to stand behind it.
  ASSERT_EQ(device->driver().cuMemcpyDtoDAsync(memory.address(), memory.address() + kLongBytes, kLongBytes,
                                               nullptr),
            CUDA_SUCCESS);
  auto* const out = reinterpret_cast<uint8_t*>(memory.address());  // NOLINT(performance-no-int-to-ptr)
  void* const outputs[] = {out, out + 64};
  BatchDescriptor batch{};
  batch.generation = 7;
  batch.samples = 4;
  EXPECT_THAT(slots->Write(batch, {outputs, {}}, nullptr), StatusIs(Code::kInternal, HasSubstr("launch")));
  EXPECT_TRUE(std::all_of(out, out + 64, [](uint8_t byte) { return byte == kWritten; }));
  EXPECT_EQ(page_->slots[0].generation.load(), 0U);
  EXPECT_EQ(peer.Dismiss(), 0);
}

TEST_P(DeviceSlotsTest, RowsAreWrittenOnlyWhereTheTrainerHasRoomForThem) {
  Peer peer(LendTask());
  Receive(peer);
  offer_.layout.batch_size = 2;
  offer_.layout.tensors = {{{"text", DType::kUint8, {8}, 1}, 0, 8},
                           {{"extents", DType::kInt64, {2}}, 512, sizeof(RowExtent)}};
  offer_.outputs = {{offer_.layout.tensors[0].spec, 0, std::nullopt, false},
                    {offer_.layout.tensors[1].spec, 1, std::nullopt, true}};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceSlots> slots, Map());
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const CudaDevice> device, CudaDevice::Open(0));
  ASSERT_OK_AND_ASSIGN(const DeviceMemory memory, DeviceMemory::Allocate(device, 4096));
  const auto scope = device->Enter();
  std::memcpy(slots->address(), "abcdefgh", 8);
  const RowExtent extents[] = {{5, 3}, {0, 5}};
  std::memcpy(slots->address() + 512, extents, sizeof extents);
  auto* const out = reinterpret_cast<char*>(memory.address());  // NOLINT(performance-no-int-to-ptr)
  void* const outputs[] = {out, out + 1024};
  const uint64_t max_rows[] = {4, UINT64_MAX};
  BatchDescriptor batch{};
  batch.generation = 7;
  batch.samples = 2;
  ASSERT_OK(slots->Write(batch, {outputs, max_rows}, nullptr));
  ASSERT_EQ(device->driver().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(std::string(out, 8), std::string("fgh\0\0\0\0\0", 8));
  const auto* const written = reinterpret_cast<const int64_t*>(out + 1024);
  EXPECT_THAT(std::vector(written, written + 4), ElementsAre(0, 3, 3, 0));
  EXPECT_EQ(page_->slots[0].generation.load(), 7U);
  EXPECT_EQ(peer.Dismiss(), 0);
}

TEST_P(DeviceSlotsTest, ArenaWithAnotherIdIsRefused) {
  Peer peer(LendTask());
  Receive(peer);
  offer_.arena_id[15] = std::byte{'j'};
  const Result<std::unique_ptr<DeviceSlots>> slots = Map();
  EXPECT_EQ(slots.status().code(), Code::kInternal);
  EXPECT_THAT(slots.status().message(), HasSubstr("is another arena"));
  EXPECT_EQ(peer.Dismiss(), 0);
}

// A descriptor keeps the memory; a handle opens nothing any more.
TEST_P(DeviceSlotsTest, LenderThatIsGoneLeavesWhatItsBackendPromises) {
  Peer peer(LendTask());
  Receive(peer);
  EXPECT_EQ(peer.Dismiss(), 0);
  EXPECT_EQ(Map().ok(), GetParam() == Backend::kVmmFd);
}

// What only a handle has; a descriptor may be mapped by any GPU.
class DeviceHandleTest : public DeviceSlotsTest {};

TEST_P(DeviceHandleTest, HandleOfAnotherGpuIsRefused) {
  Peer peer("lend-other-gpu");
  Receive(peer);
  EXPECT_THAT(Map().status().message(), HasSubstr("CUDA_ERROR_INVALID_DEVICE"));
  EXPECT_EQ(peer.Dismiss(), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceHandleTest, ::testing::Values(Backend::kCudaIpc));
INSTANTIATE_TEST_SUITE_P(Backends, DeviceSlotsDeathTest,
                         ::testing::Values(Backend::kVmmFd, Backend::kCudaIpc));
INSTANTIATE_TEST_SUITE_P(Backends, DeviceSlotsTest, ::testing::Values(Backend::kVmmFd, Backend::kCudaIpc),
                         [](const auto& test) {
                           return test.param == Backend::kVmmFd ? "VmmFd" : "CudaIpc";
                         });

}  // namespace
}  // namespace pinfeed
