// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/storage_threads.h"

#include <future>
#include <latch>
#include <vector>

#include "tests/testing.h"

namespace pinfeed {
namespace {

using std::chrono::steady_clock;

// Purpose: a dataset whose files are closed no sooner than `gate` opens. Threads: any.
class SlowToClose final : public Dataset {
 public:
  SlowToClose(std::string path, std::latch& closing, std::shared_future<void> gate)
      : closing_(closing), gate_(std::move(gate)) {
    info_.path = std::move(path);
  }
  ~SlowToClose() override {
    closing_.count_down();
    gate_.wait();
  }
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t, size_t, std::span<std::byte>) const override { return OkStatus(); }
  Status ReadEncoded(uint64_t, size_t, std::vector<std::byte>&) const override { return OkStatus(); }
  std::string Describe(uint64_t) const override { return ""; }

 private:
  std::latch& closing_;
  const std::shared_future<void> gate_;
  DatasetInfo info_;
};

// Nobody who lets go of a dataset waits for its storage, and what hangs takes threads of its user alone.
TEST(StorageThreadsTest, ClosesThatHangHoldThreadsOfTheirUserOnly) {
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  std::latch closing(8);
  std::latch rest(12);
  StorageThreads threads;
  for (int i = 0; i < 8; ++i)
    threads.Close(1, std::make_shared<SlowToClose>("/hung/" + std::to_string(i), closing, opened));
  closing.wait();
  for (int i = 8; i < 20; ++i)
    threads.Close(1, std::make_shared<SlowToClose>("/hung/" + std::to_string(i), rest, opened));
  std::promise<void> ran;
  ASSERT_TRUE(threads.Submit(2, "opening dataset '/good'", [&ran] { ran.set_value(); }));
  ran.get_future().wait();
  EXPECT_FALSE(rest.try_wait());
  size_t of_the_user = 0;
  for (const StorageThreads::UnderWay& at : threads.under_way()) {
    if (at.user != 1) continue;  // the other call may not have been forgotten yet
    ++of_the_user;
    EXPECT_THAT(at.what, ::testing::StartsWith("closing dataset '/hung/"));
  }
  EXPECT_EQ(of_the_user, 8U);
  EXPECT_FALSE(threads.Finish(steady_clock::now())) << "with 8 threads in the middle of it";
  gate.set_value();
  EXPECT_TRUE(threads.Finish(steady_clock::time_point::max()));
  EXPECT_TRUE(rest.try_wait());
  EXPECT_TRUE(threads.under_way().empty());
}

TEST(StorageThreadsTest, AfterTheEndDatasetsAreClosedWhereTheyAreLetGoOf) {
  std::promise<void> gate;
  gate.set_value();
  std::latch closing(1);
  StorageThreads threads;
  ASSERT_TRUE(threads.Finish(steady_clock::time_point::max()));
  threads.Close(1, std::make_shared<SlowToClose>("/late", closing, gate.get_future().share()));
  EXPECT_TRUE(closing.try_wait());
}

}  // namespace
}  // namespace pinfeed
