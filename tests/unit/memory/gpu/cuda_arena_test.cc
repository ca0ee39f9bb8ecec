// SPDX-License-Identifier: Apache-2.0
// What users see of each other on a GPU: nothing. Over the stand-in for the driver, whose new memory holds
// noise here, since the real one promises nothing.
#include "server/memory/gpu/cuda_arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <vector>

#include "server/memory/device_arenas.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint32_t kSlots = 3;
constexpr uid_t kAlice = 1001;
constexpr uid_t kBob = 1002;
constexpr uid_t kCarol = 1003;

class CudaArenaTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("PINFEED_STAND_IN_DIRTY", "1", 1);
  }  // NOLINT(concurrency-mt-unsafe)
  void SetUp() override {
    DeviceOptions options;
    options.pinned_bytes = uint64_t{2} << 20;
    options.gpu_bytes.bytes = uint64_t{10} << 20;
    options.user_pinned_bytes.share = 0.5;
    options.user_gpu_bytes.share = 0.5;
    options.on_failure = [](const Status& status) { ADD_FAILURE() << status.ToString(); };
    ASSERT_OK_AND_ASSIGN(devices_, MakeDeviceArenas(options, pool_));
    uuid_ = devices_->Snapshot().front().uuid;
    ASSERT_OK_AND_ASSIGN(device_, CudaDevice::Open(0));
  }
  // Batches of so many bytes, in slots of 4 KiB and more.
  Result<std::unique_ptr<Arena>> Make(uid_t user, Backend backend, Sharing sharing = Sharing::kExclusive,
                                      int64_t bytes = 100'000) {
    const BatchLayout layout = BatchLayout::Create({{"x", DType::kUint8, {bytes}}}, 1).value();
    return devices_->Make(uuid_, backend, sharing, layout, kSlots, user);
  }
  // All slots as a client on the GPU has them.
  std::vector<std::byte> Seen(const Arena& arena) {
    const bool by_fd = arena.backend() == Backend::kVmmFd;
    // A handle opens in other processes only; what is behind it is the same memory.
    if (!by_fd) return {};
    const DeviceMemory memory = DeviceMemory::Import(device_, arena.fd(), arena.mapped_bytes(), true).value();
    std::vector<std::byte> bytes(arena.bytes());
    const auto scope = device_->Enter();
    EXPECT_EQ(device_->driver().cuMemcpyDtoH(bytes.data(), memory.address(), bytes.size()), CUDA_SUCCESS);
    return bytes;
  }
  // Memory for the slot's batch, which is one piece.
  static Piece Take(Arena& arena, uint32_t slot) {
    Piece piece{slot, 0, 1, 0};
    EXPECT_TRUE(arena.Take(&piece));
    return piece;
  }
  static Status Deliver(Arena& arena, const Piece& piece) {
    std::promise<Status> done;
    arena.Deliver(piece, {0, 1, true}, [&](Status status, CopyTime) { done.set_value(std::move(status)); });
    return done.get_future().get();
  }
  static bool AllZero(const std::byte* bytes, size_t count) {
    return std::all_of(bytes, bytes + count, [](std::byte byte) { return byte == std::byte{0}; });
  }

  MemoryBudget pool_{uint64_t{4} << 20};
  std::unique_ptr<DeviceArenas> devices_;
  std::string uuid_;
  std::shared_ptr<const CudaDevice> device_;
};

TEST_F(CudaArenaTest, NothingOfAnEarlierUserIsSeen) {
  for (const Sharing sharing : {Sharing::kExclusive, Sharing::kBroadcast}) {
    {
      ASSERT_OK_AND_ASSIGN(const auto arena, Make(kAlice, Backend::kVmmFd, sharing));
      std::vector<Piece> pieces;
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        pieces.push_back(Take(*arena, slot));
        std::memset(arena->FillAddress(pieces.back(), 0), 'a', arena->slot_stride());
      }
      for (const Piece& piece : pieces) ASSERT_OK(Deliver(*arena, piece));
      EXPECT_EQ(Seen(*arena)[5], std::byte{'a'});
    }
    ASSERT_OK_AND_ASSIGN(const auto arena, Make(kBob, Backend::kVmmFd, sharing));
    const std::vector<std::byte> before = Seen(*arena);
    EXPECT_TRUE(AllZero(before.data(), before.size())) << "slots that nothing was delivered to";
    std::vector<Piece> pieces;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      pieces.push_back(Take(*arena, slot));
      std::byte* const memory = arena->FillAddress(pieces.back(), 0);
      EXPECT_TRUE(AllZero(memory, arena->slot_stride())) << "staging of slot " << slot;
      std::memset(memory, 'b', 10);  // a short batch
    }
    for (const Piece& piece : pieces) ASSERT_OK(Deliver(*arena, piece));
    const std::vector<std::byte> after = Seen(*arena);
    for (uint32_t slot = 0; slot < kSlots; ++slot)
      EXPECT_TRUE(AllZero(after.data() + slot * arena->slot_stride() + 10, arena->slot_stride() - 10));
  }
}

TEST_F(CudaArenaTest, NewMemoryIsClearedWhateverTheDriverGives) {
  ASSERT_OK_AND_ASSIGN(const auto arena, Make(kAlice, Backend::kVmmFd));
  const std::vector<std::byte> seen = Seen(*arena);
  EXPECT_TRUE(AllZero(seen.data(), seen.size()));
}

TEST_F(CudaArenaTest, UsersHaveTheirShareOfPinnedAndDeviceMemory) {
  ASSERT_OK_AND_ASSIGN(const auto first, Make(kAlice, Backend::kVmmFd, Sharing::kExclusive, 200'000));
  EXPECT_GE(devices_->UsedByUser().at(kAlice).pinned, kSlots * 200'000U);
  EXPECT_GE(devices_->UsedByUser().at(kAlice).device, kSlots * 200'000U);
  EXPECT_THAT(Make(kAlice, Backend::kVmmFd, Sharing::kExclusive, 200'000),
              StatusIs(Code::kResourceExhausted, AllOf(HasSubstr("user_pinned_bytes: user 1001 has "),
                                                       HasSubstr("1 MiB (1048576 bytes) that a user may"))));
  ASSERT_OK(Make(kBob, Backend::kVmmFd, Sharing::kExclusive, 200'000));
  EXPECT_THAT(Make(kBob, Backend::kVmmFd, Sharing::kExclusive, 1'500'000),
              StatusIs(Code::kResourceExhausted, HasSubstr("user_gpu_bytes: user 1002 has ")));
  EXPECT_EQ(devices_->UsedByUser().count(kBob), 0U) << "what failed or ended is not charged";
}

// Of all slots together, whichever of them would still fit.
TEST_F(CudaArenaTest, PinnedMemoryThatIsRefusedIsAllThatWasWanted) {
  ASSERT_OK_AND_ASSIGN(const auto first, Make(kAlice, Backend::kVmmFd, Sharing::kExclusive, 300'000));
  ASSERT_OK_AND_ASSIGN(const auto second, Make(kBob, Backend::kVmmFd, Sharing::kExclusive, 200'000));
  EXPECT_THAT(Make(kCarol, Backend::kVmmFd, Sharing::kExclusive, 250'000),
              StatusIs(Code::kResourceExhausted,
                       AllOf(HasSubstr("reserve 744 KiB (761856 bytes) of the pinned memory"),
                             HasSubstr("572 KiB (585728 bytes) of its 2 MiB are free"),
                             HasSubstr("give the daemon more pinned_bytes"))));
  EXPECT_EQ(devices_->UsedByUser().count(kCarol), 0U);
}

TEST_F(CudaArenaTest, PinnedMemoryInPiecesThatAreTooSmallIsRefusedWithTheirSizes) {
  ASSERT_OK_AND_ASSIGN(const auto first, Make(kAlice, Backend::kVmmFd, Sharing::kExclusive, 200'000));
  Result<std::unique_ptr<Arena>> between = Make(kBob, Backend::kVmmFd, Sharing::kExclusive, 200'000);
  ASSERT_OK_AND_ASSIGN(const auto last, Make(kCarol, Backend::kVmmFd, Sharing::kExclusive, 200'000));
  between = NotFound("gone");
  EXPECT_THAT(
      Make(kBob, Backend::kVmmFd, Sharing::kExclusive, 293'000),
      StatusIs(Code::kResourceExhausted,
               AllOf(HasSubstr(
                         "take 864 KiB (884736 bytes) of pinned memory: 872 KiB (892928 bytes) of its 2 MiB"),
                     HasSubstr("no free block of 288 KiB (294912 bytes)"),
                     HasSubstr("the largest has 284 KiB (290816 bytes)"))));
  EXPECT_EQ(devices_->UsedByUser().count(kBob), 0U);
  EXPECT_OK(Make(kBob, Backend::kVmmFd, Sharing::kExclusive, 200'000)) << "nothing of it is lost";
}

}  // namespace
}  // namespace pinfeed
