// SPDX-License-Identifier: Apache-2.0
#include "server/memory/large_samples.h"

#include <atomic>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "server/memory/host_memory_ledger.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using Attempts = LargeSamples::Attempts;

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

// A host with memory for one large sample. Each takes its memory in two steps, as a file and its pixels do.
class LargeSamplesTest : public ::testing::Test {
 protected:
  // Whether `bytes` more were there for the calling thread.
  bool Take(uint64_t bytes) {
    const auto reserved = ledger_.ReserveForSample(bytes);
    if (!reserved.ok()) return false;
    uint64_t left = available_;
    do {
      if (left < bytes) return false;  // the kernel's answer to who came between
    } while (!available_.compare_exchange_weak(left, left - bytes));
    return true;
  }
  // Whether the sample was loaded in the end.
  bool Load() {
    Attempts attempts(ledger_.large_samples());
    do {
      uint64_t taken = 0;
      bool loaded = true;
      for (const uint64_t bytes : {70 * kMebibyte, 100 * kMebibyte}) {
        if (loaded = Take(bytes); !loaded) break;
        taken += bytes;
        std::this_thread::yield();
      }
      if (!loaded) attempts.Refuse();
      available_ += taken;
      if (loaded) return true;
    } while (attempts.Again());
    return false;
  }

  std::atomic<uint64_t> available_{200 * kMebibyte};
  HostMemoryLedger ledger_{[this](uint64_t /*enough*/) {
    return Result<HostMemory>(HostMemory{256 * kMebibyte, available_, "a group", "a tighter group"});
  }};
};

TEST_F(LargeSamplesTest, AllAreLoadedWithTheMemoryOfOne) {
  constexpr int kThreads = 6;
  std::latch begin(kThreads);
  std::atomic<int> loaded = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      begin.arrive_and_wait();
      for (int sample = 0; sample < 50; ++sample) loaded += Load() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(loaded, kThreads * 50);
  EXPECT_EQ(available_, 200 * kMebibyte);
}

TEST_F(LargeSamplesTest, OneThatIsTooLargeAloneIsTriedTwiceOnly) {
  available_ = 100 * kMebibyte;
  Attempts attempts(ledger_.large_samples());
  EXPECT_FALSE(attempts.Again()) << "nothing was refused";
  EXPECT_FALSE(Take(110 * kMebibyte));
  EXPECT_TRUE(attempts.Again());
  EXPECT_FALSE(Take(110 * kMebibyte));
  EXPECT_FALSE(attempts.Again());
}

TEST_F(LargeSamplesTest, WhatLacksTheMemoryThatOthersHaveIsTriedAgainWithoutThem) {
  std::latch held(1);
  std::latch refused(1);
  std::thread other([&] {
    const Attempts attempts(ledger_.large_samples());
    EXPECT_TRUE(Take(150 * kMebibyte));
    held.count_down();
    refused.wait();
    available_ += 150 * kMebibyte;
  });
  held.wait();
  int tries = 0;
  EXPECT_OK(ledger_.large_samples().Try([&] {
    const bool taken = Take(100 * kMebibyte);
    if (++tries == 1) refused.count_down();
    return taken ? OkStatus() : ResourceExhausted("a slot");
  }));
  EXPECT_EQ(tries, 2);
  other.join();
}

TEST_F(LargeSamplesTest, OtherErrorsAreNotTriedAgain) {
  int tries = 0;
  EXPECT_THAT(ledger_.large_samples().Try([&] {
    ++tries;
    return InvalidArgument("a slot");
  }),
              StatusIs(Code::kInvalidArgument, HasSubstr("a slot")));
  EXPECT_EQ(tries, 1);
}

TEST_F(LargeSamplesTest, WhileOneLoadsAloneOthersAreRefusedAndWait) {
  std::optional<Attempts> alone(std::in_place, ledger_.large_samples());
  alone->Refuse();
  ASSERT_TRUE(alone->Again());
  std::latch refused(1);
  std::atomic<bool> ended = false;
  std::thread other([&] {
    Attempts attempts(ledger_.large_samples());
    EXPECT_THAT(ledger_.ReserveForSample(65 * kMebibyte),
                StatusIs(Code::kResourceExhausted,
                         AllOf(HasSubstr("a sample that takes 65 MiB"), HasSubstr("another sample"))));
    EXPECT_OK(ledger_.ReserveForSample(16 * kMebibyte)) << "is not large";
    refused.count_down();
    EXPECT_TRUE(attempts.Again());
    EXPECT_TRUE(ended);
    EXPECT_OK(ledger_.ReserveForSample(65 * kMebibyte));
  });
  refused.wait();
  ended = true;
  alone.reset();
  other.join();
}

TEST(LargeSamplesOfHungStorageTest, AreNotWaitedForWithoutEnd) {
  LargeSamples samples(std::chrono::milliseconds(1));
  std::latch loading(1);
  std::latch end(1);
  std::thread hung([&] {
    const Attempts attempts(samples);
    EXPECT_TRUE(samples.Begin());
    loading.count_down();
    end.wait();
  });
  loading.wait();
  {
    Attempts attempts(samples);
    attempts.Refuse();
    EXPECT_TRUE(attempts.Again()) << "what there is may be enough";
    std::thread([&] {
      Attempts later(samples);
      later.Refuse();
      EXPECT_TRUE(later.Again()) << "a turn ends";
      EXPECT_FALSE(later.Again());
    }).join();
  }
  end.count_down();
  hung.join();
}

}  // namespace
}  // namespace pinfeed
