// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/dataset_opener.h"

#include <future>
#include <map>
#include <new>
#include <vector>

#include "tests/testing.h"

namespace pinfeed {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

DatasetSpec At(const std::string& path) {
  DatasetSpec spec;
  spec.path = path;
  return spec;
}

// Purpose: a disk on which some datasets do not answer until Release. All are opened as null. Threads: any.
class Disk {
 public:
  ~Disk() { Release(); }

  DatasetOpener::Opened Open(const DatasetSpec& spec) {
    const MutexLock lock(mutex_);
    ++asked_[spec.path];
    EXPECT_EQ(++at_[spec.path], 1) << spec.path << ": two threads at one dataset";
    ++inside_;
    changed_.NotifyAll();
    while (hangs_ && spec.path.starts_with("/hung")) changed_.Wait(mutex_);
    --inside_;
    --at_[spec.path];
    return std::shared_ptr<const Dataset>();
  }
  void Release() {
    const MutexLock lock(mutex_);
    hangs_ = false;
    changed_.NotifyAll();
  }
  // Waits until so many threads are inside.
  void Await(int threads) {
    const MutexLock lock(mutex_);
    while (inside_ < threads) changed_.Wait(mutex_);
    EXPECT_EQ(inside_, threads);
  }
  int asked(const std::string& path) {
    const MutexLock lock(mutex_);
    return asked_[path];
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool hangs_ PF_GUARDED_BY(mutex_) = true;
  int inside_ PF_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> asked_ PF_GUARDED_BY(mutex_);
  std::map<std::string, int> at_ PF_GUARDED_BY(mutex_);
};

class DatasetOpenerTest : public ::testing::Test {
 protected:
  DatasetOpenerTest()
      : opener_(
            std::make_unique<DatasetOpener>([this](const DatasetSpec& spec) { return disk_.Open(spec); })) {}
  ~DatasetOpenerTest() override { disk_.Release(); }

  std::future<Status> Open(uid_t user, const std::string& path, Patience patience = {}) {
    auto answered = std::make_shared<std::promise<Status>>();
    opener_->Open(user, At(path), std::move(patience),
                  [answered](const DatasetOpener::Opened& opened) { answered->set_value(opened.status()); });
    return answered->get_future();
  }
  static Patience For(milliseconds time) { return {steady_clock::now() + time, nullptr}; }

  Disk disk_;
  std::unique_ptr<DatasetOpener> opener_;
};

TEST_F(DatasetOpenerTest, WhoComesLaterWaitsAndIsServedByOneMoreLook) {
  std::vector<std::future<Status>> answers;
  answers.push_back(Open(1, "/hung/a"));
  disk_.Await(1);
  for (const uid_t user : {1U, 1U, 2U, 3U}) answers.push_back(Open(user, "/hung/a"));
  EXPECT_OK(Open(1, "/good").get());
  EXPECT_EQ(disk_.asked("/hung/a"), 1);
  disk_.Release();
  for (std::future<Status>& answer : answers) EXPECT_OK(answer.get());
  EXPECT_EQ(disk_.asked("/hung/a"), 2);  // the files may have changed since the first began
}

// A trainer that tries again and again, and a mount that does not answer: one thread is there, and it is said
// which dataset it is.
TEST_F(DatasetOpenerTest, RetriesHoldOneThreadAndAreToldTheName) {
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(Open(1, "/hung/a", For(milliseconds(1))).get(),
                StatusIs(Code::kDeadlineExceeded, HasSubstr("open dataset '/hung/a': not done after ")));
    disk_.Await(1);
  }
  EXPECT_EQ(disk_.asked("/hung/a"), 1);
  EXPECT_THAT(Open(1, "/hung/a", For(milliseconds(1))).get(),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("has not given an answer")));
  std::future<Status> patient = Open(1, "/hung/a");
  disk_.Release();
  EXPECT_OK(patient.get());
}

TEST_F(DatasetOpenerTest, ClientsThatWentAwayAreAnswered) {
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  std::future<Status> first = Open(1, "/hung/a", {steady_clock::time_point::max(), gone});
  disk_.Await(1);
  std::future<Status> second = Open(1, "/hung/a", {steady_clock::time_point::max(), gone});
  *gone = true;
  EXPECT_THAT(first.get(), StatusIs(Code::kCancelled));
  EXPECT_THAT(second.get(), StatusIs(Code::kCancelled));
}

// Users whose mounts hang, all of them: each has the threads that it may have, and the others are served.
TEST_F(DatasetOpenerTest, UsersWithManyHungDatasetsLeaveThreadsToTheOthers) {
  constexpr int kAUser = 8;
  constexpr int kAll = 24;
  for (uid_t user = 1; user <= 3; ++user) {
    for (int i = 0; i < 20; ++i) {
      const std::string path = "/hung/" + std::to_string(user) + "/" + std::to_string(i);
      opener_->Open(user, At(path), {}, [](const DatasetOpener::Opened&) {});
    }
    disk_.Await(static_cast<int>(user) * kAUser);
    EXPECT_THAT(
        Open(user, "/hung/more", For(milliseconds(1))).get(),
        StatusIs(Code::kDeadlineExceeded,
                 AllOf(HasSubstr("open dataset '/hung/more'"), HasSubstr("8 other datasets of this user"),
                       HasSubstr("dataset '/hung/" + std::to_string(user)))));
  }
  for (uid_t user = 4; user <= 10; ++user) {
    EXPECT_OK(Open(user, "/good").get());
    opener_->Open(user, At("/hung/of" + std::to_string(user)), {}, [](const DatasetOpener::Opened&) {});
    disk_.Await(kAll + static_cast<int>(user) - 3);
  }
  EXPECT_OK(Open(11, "/good").get());
}

// Somebody's queue of hung datasets does not stand before another user that wants one of them.
TEST_F(DatasetOpenerTest, WhatWaitsForOneUserIsOpenedForAnother) {
  for (int i = 0; i < 8; ++i)
    opener_->Open(1, At("/hung/" + std::to_string(i)), {}, [](const DatasetOpener::Opened&) {});
  disk_.Await(8);
  std::future<Status> waits = Open(1, "/good");
  EXPECT_OK(Open(2, "/good").get());
  EXPECT_OK(waits.get());
}

TEST(DatasetOpenerMemoryTest, ADatasetWithoutMemoryForItIsAnErrorOfWhoOpensIt) {
  DatasetOpener opener([](const DatasetSpec& spec) -> DatasetOpener::Opened {
    if (spec.path == "/large") throw std::bad_alloc();
    return std::shared_ptr<const Dataset>();
  });
  const auto open = [&](const std::string& path) {
    const auto answered = std::make_shared<std::promise<Status>>();
    opener.Open(1000, At(path), {},
                [answered](const DatasetOpener::Opened& opened) { answered->set_value(opened.status()); });
    return answered->get_future().get();
  };
  EXPECT_THAT(open("/large"), StatusIs(Code::kResourceExhausted, HasSubstr("'/large'")));
  EXPECT_OK(open("/small"));
  EXPECT_THAT(open("/large"), StatusIs(Code::kResourceExhausted, HasSubstr("'/large'")));
}

TEST_F(DatasetOpenerTest, AtTheEndWhoWaitsIsTold) {
  std::future<Status> waits = Open(1, "/hung/a");
  disk_.Await(1);
  std::future<void> end = std::async(std::launch::async, [this] { opener_.reset(); });
  EXPECT_THAT(waits.get(), StatusIs(Code::kUnavailable, HasSubstr("the daemon stops")));
  disk_.Release();
  end.get();
}

}  // namespace
}  // namespace pinfeed
