// SPDX-License-Identifier: Apache-2.0
// Arenas in the memory of GPUs, and a group's on several of them, over the stand-in driver.
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "server/memory/device_arenas.h"
#include "server/memory/memory_budget.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint32_t kArenaSlots = 4;
constexpr uint32_t kSamples = 4;  // of a batch

class DeviceArenaTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("PINFEED_STAND_IN_GPUS", "3", 1); }

  void MakeGpus() {
    DeviceOptions options;
    options.pinned_bytes = 32 * kMiB;
    options.gpu_bytes.bytes = 32 * kMiB;
    options.on_failure = [](const Status& failure) { ADD_FAILURE() << failure.message(); };
    ASSERT_OK_AND_ASSIGN(gpus_, MakeDeviceArenas(options, pool_));
  }
  // Slots of a MiB each.
  Result<std::unique_ptr<Arena>> Make(Backend backend, Sharing sharing) {
    ASSIGN_OR_RETURN(const BatchLayout layout,
                     BatchLayout::Create({{"data", DType::kUint8, {int64_t{1} << 18}}}, kSamples));
    return gpus_->Make(Uuid(0), backend, sharing, layout, kArenaSlots, /*user=*/1001);
  }
  std::string Uuid(size_t gpu) const { return gpus_->Snapshot()[gpu].uuid; }
  uint64_t Used(size_t gpu) const { return gpus_->Snapshot()[gpu].arena_used_bytes; }
  // Delivers the slots at once, calls `meanwhile`, and waits for all that the deliveries hold, as feeds do.
  static void Deliver(
      Arena& arena, uint32_t slots, const std::function<void()>& meanwhile = [] {}) {
    std::promise<void> ended;
    std::shared_ptr<void> held(nullptr, [&](void*) { ended.set_value(); });
    for (uint32_t slot = 0; slot < slots; ++slot) {
      Piece batch{slot, 0, kSamples, 0};
      ASSERT_TRUE(arena.Take(&batch));
      arena.Deliver(batch, {0, kSamples, true},
                    [held](const Status& status, const CopyTime&) { EXPECT_OK(status); });
    }
    held.reset();
    meanwhile();
    ended.get_future().wait();
  }

  // Expects that run(a broadcast's arena) returns true, in another process, whose driver fails so.
  template <typename Run>
  void ExpectBeside(const char* failures, const Run& run) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(
        {
          ::alarm(20);  // it would wait for ever
          ::setenv("PINFEED_STAND_IN_FAIL", failures, 1);
          MakeGpus();
          const std::unique_ptr<Arena> arena = *Make(Backend::kVmmFd, Sharing::kBroadcast);
          std::_Exit(run(*arena) ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "");
  }

  MemoryBudget pool_{64 * kMiB};
  std::unique_ptr<DeviceArenas> gpus_;
};

TEST_F(DeviceArenaTest, ChargeIsOfWholePages) {
  MakeGpus();
  for (const Backend backend : {Backend::kVmmFd, Backend::kCudaIpc}) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Arena> arena, Make(backend, Sharing::kExclusive));
    EXPECT_EQ(Used(0), 6 * kMiB);  // the slots and their id
    EXPECT_EQ(Used(0), arena->mapped_bytes());
  }
}

TEST_F(DeviceArenaTest, PartGoesWithTheLastOfItsClientsThatHadNoBatch) {
  MakeGpus();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Arena> arena, Make(Backend::kVmmFd, Sharing::kBroadcast));
  ASSERT_OK_AND_ASSIGN(const Arena* const part, arena->PartOn(Uuid(1)));
  ASSERT_OK_AND_ASSIGN(const Arena* const same, arena->PartOn(Uuid(1)));
  ASSERT_EQ(part, same);
  arena->ReleasePart(*part, false, {});
  EXPECT_EQ(Used(1), 6 * kMiB);
  arena->ReleasePart(*part, false, {});
  EXPECT_EQ(Used(1), 0U);
  EXPECT_OK(arena->PartOn(Uuid(1)));  // and can be had again
  Deliver(*arena, 1);
}

TEST_F(DeviceArenaTest, PartThatHadBatchesStaysForWhoComesBack) {
  MakeGpus();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Arena> arena, Make(Backend::kVmmFd, Sharing::kBroadcast));
  ASSERT_OK_AND_ASSIGN(const Arena* const part, arena->PartOn(Uuid(1)));
  Deliver(*arena, 1);
  arena->ReleasePart(*part, true, {});
  EXPECT_EQ(Used(1), 6 * kMiB);
  EXPECT_OK(arena->PartOn(Uuid(1)));
  EXPECT_THAT(arena->PartOn(Uuid(2)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("the group is already running")));
}

TEST_F(DeviceArenaTest, PartThatGoesUnderADeliveryEndsBehindIt) {
  MakeGpus();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Arena> arena, Make(Backend::kVmmFd, Sharing::kBroadcast));
  ASSERT_OK_AND_ASSIGN(const Arena* const one, arena->PartOn(Uuid(1)));
  ASSERT_OK_AND_ASSIGN(const Arena* const other, arena->PartOn(Uuid(2)));
  Deliver(*arena, kArenaSlots, [&] {
    arena->ReleasePart(*one, false, {});
    arena->ReleasePart(*other, false, {});
  });
  EXPECT_EQ(Used(1) + Used(2), 0U);
}

// The second piece of memory is the first part's.
TEST_F(DeviceArenaTest, MemoryOfAPartIsWaitedForByNobodyElse) {
  ExpectBeside("cuMemCreate:2:hang", [&](Arena& arena) {
    std::thread([&] { (void)arena.PartOn(Uuid(1)); }).detach();
    while (Used(1) == 0) std::this_thread::yield();  // charged: it is being made
    return arena.PartOn(Uuid(0)).ok();
  });
}

TEST_F(DeviceArenaTest, CopyFromTheHostThatFailsEndsTheDeliveryToAllGpus) {
  ExpectBeside("cuMemcpyHtoDAsync:1:719", [&](Arena& arena) {
    if (!arena.PartOn(Uuid(1)).ok() || !arena.PartOn(Uuid(2)).ok()) return false;
    Piece piece{0, 0, kSamples, 0};
    if (!arena.Take(&piece)) return false;
    std::promise<Code> ended;  // a second call would throw
    arena.Deliver(piece, {0, kSamples, true},
                  [&](const Status& status, const CopyTime&) { ended.set_value(status.code()); });
    return ended.get_future().get() == Code::kUnavailable;
  });
}

TEST_F(DeviceArenaTest, CopiesFromTheHostDoNotWaitForThoseBetweenGpus) {
  ExpectBeside("cuMemcpyDtoDAsync:1:hang,cuMemcpyDtoDAsync:2:hang", [&](Arena& arena) {
    if (!arena.PartOn(Uuid(1)).ok()) return false;
    Piece piece{0, 0, kSamples, 0};
    for (; piece.slot < kArenaSlots; ++piece.slot) {
      if (!arena.Take(&piece)) return false;
      arena.Deliver(piece, {0, kSamples, true}, [](const Status&, const CopyTime&) { std::_Exit(3); });
    }
    for (uint32_t i = 0; i < kArenaSlots; ++i)  // all pinned memory can be filled again
      while (!arena.Take(&piece)) std::this_thread::yield();
    const GpuSnapshot::CopyThread last = gpus_->Snapshot()[1].copy_threads.back();
    return last.name == "peer-1" && last.stalled.count() > 0;
  });
}

}  // namespace
}  // namespace pinfeed
