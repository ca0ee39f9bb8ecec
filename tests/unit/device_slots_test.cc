// SPDX-License-Identifier: Apache-2.0
// The client's end of an arena on a GPU, over both backends, with another process that lends it.
#include "client/src/device_slots.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "common/cuda/device_memory.h"
#include "tests/unit/stand_in_peer.h"

namespace pinfeed {
namespace {

using ::testing::HasSubstr;

class DeviceSlotsTest : public ::testing::TestWithParam<Backend> {
 protected:
  static void SetUpTestSuite() { ::setenv("PINFEED_STAND_IN_GPUS", "2", 1); }

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
  EXPECT_TRUE(slots->Settle(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
  EXPECT_EQ(page_->slots[2].generation.load(), 7U);
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
INSTANTIATE_TEST_SUITE_P(Backends, DeviceSlotsTest, ::testing::Values(Backend::kVmmFd, Backend::kCudaIpc),
                         [](const auto& test) {
                           return test.param == Backend::kVmmFd ? "VmmFd" : "CudaIpc";
                         });

}  // namespace
}  // namespace pinfeed
