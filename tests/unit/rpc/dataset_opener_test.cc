// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/dataset_opener.h"

#include <future>
#include <map>
#include <new>
#include <vector>

#include "tests/support/parameters.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

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

// Purpose: a dataset whose files are closed no sooner than `gate` opens. Threads: any.
class SlowToClose final : public Dataset {
 public:
  SlowToClose(std::atomic<int>& closing, std::shared_future<void> gate)
      : closing_(closing), gate_(std::move(gate)) {}
  ~SlowToClose() override {
    ++closing_;
    closing_.notify_all();
    gate_.wait();
  }
  const DatasetInfo& info() const override { return info_; }
  std::string Describe(uint64_t) const override { return ""; }

 private:
  std::atomic<int>& closing_;
  const std::shared_future<void> gate_;
  DatasetInfo info_;
};

class DatasetOpenerTest : public ::testing::Test {
 protected:
  DatasetOpenerTest()
      : opener_(std::make_unique<DatasetOpener>(
            [this](uid_t, const DatasetSpec& spec) { return disk_.Open(spec); },
            [this](const std::string&) { return path_of_name_; })) {}
  ~DatasetOpenerTest() override { disk_.Release(); }

  std::future<Status> Open(uid_t user, const std::string& path, CallLimits limits = {}) {
    return Open(user, At(path), std::move(limits));
  }
  std::future<Status> Open(uid_t user, const DatasetSpec& spec, CallLimits limits = {}) {
    auto answered = std::make_shared<std::promise<Status>>();
    opener_->Open(user, spec, std::move(limits),
                  [answered](const DatasetOpener::Opened& opened) { answered->set_value(opened.status()); });
    return answered->get_future();
  }
  static CallLimits For(milliseconds time) { return {steady_clock::now() + time, nullptr}; }

  std::string path_of_name_;
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

// However a place is written, and however what lies there is to be read, one thread is there.
TEST_F(DatasetOpenerTest, SpecsOfOnePlaceTakeTurns) {
  std::vector<std::future<Status>> answers;
  for (const char* path : {"/hung/a", "/hung//a", "/hung/./a", "/hung/b/../a", "/hung/a/"})
    answers.push_back(Open(1, path));
  for (uint32_t length = 1; length <= 8; ++length) {
    DatasetSpec spec = At("/hung/a");
    spec.options["sequence_length"] = Number(length);
    answers.push_back(Open(length % 2 + 1, spec));
  }
  disk_.Await(1);
  EXPECT_OK(Open(1, "/good").get());
  disk_.Await(1);
  EXPECT_EQ(opener_->RunningOperations().size(), 1U);
  disk_.Release();
  for (std::future<Status>& answer : answers) EXPECT_OK(answer.get());
}

// A trainer that tries again and again, and a mount that does not answer: one thread is there, and it is said
// which dataset it is.
TEST_F(DatasetOpenerTest, RetriesHoldOneThreadAndAreToldTheName) {
  int tries_after = 0;  // those that no thread came to in their time ask nothing
  while (tries_after < 50) {
    EXPECT_THAT(Open(1, "/hung/a", For(milliseconds(1))).get(),
                StatusIs(Code::kDeadlineExceeded, HasSubstr("open dataset '/hung/a': not done after ")));
    if (disk_.asked("/hung/a") == 0) continue;
    disk_.Await(1);
    ++tries_after;
  }
  EXPECT_EQ(disk_.asked("/hung/a"), 1);
  EXPECT_THAT(Open(1, "/hung/a", For(milliseconds(1))).get(),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("has not answered")));
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
    EXPECT_THAT(Open(user, "/hung/more", For(milliseconds(1))).get(),
                StatusIs(Code::kDeadlineExceeded,
                         AllOf(HasSubstr("open dataset '/hung/more'"),
                               HasSubstr("8 threads are busy with other datasets of this user"),
                               HasSubstr("s, is opening dataset '/hung/" + std::to_string(user)))));
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
  DatasetOpener opener(
      [](uid_t, const DatasetSpec& spec) -> DatasetOpener::Opened {
        if (spec.path == "/large") throw std::bad_alloc();
        return std::shared_ptr<const Dataset>();
      },
      nullptr);
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

TEST(DatasetOpenerMemoryTest, WhatAnOpenReplacesIsClosedBeforeItGoesOn) {
  std::atomic<int> closing = 0;
  std::promise<void> gate;
  gate.set_value();
  DatasetOpener* in_use = nullptr;
  DatasetOpener opener(
      [&](uid_t user, const DatasetSpec& spec) -> DatasetOpener::Opened {
        in_use->Close(user, spec, std::make_shared<SlowToClose>(closing, gate.get_future().share()));
        EXPECT_EQ(closing, 1) << "its memory is needed now";
        return std::shared_ptr<const Dataset>();
      },
      nullptr);
  in_use = &opener;
  const auto answered = std::make_shared<std::promise<void>>();
  opener.Open(1, At("/set"), {}, [answered](const DatasetOpener::Opened&) { answered->set_value(); });
  answered->get_future().wait();
}

TEST_F(DatasetOpenerTest, AtTheEndWhoWaitsIsTold) {
  std::future<Status> waits = Open(1, "/hung/a");
  disk_.Await(1);
  std::future<void> end = std::async(std::launch::async, [this] { opener_.reset(); });
  EXPECT_THAT(waits.get(), StatusIs(Code::kUnavailable, HasSubstr("the daemon is stopping")));
  disk_.Release();
  end.get();
}

// Purpose: datasets that are let go of, and hang until Release.
class DatasetOpenerCloseTest : public DatasetOpenerTest {
 protected:
  ~DatasetOpenerCloseTest() override { Release(); }
  void Close(uid_t user, const std::string& path) {
    opener_->Close(user, At(path), std::make_shared<SlowToClose>(closing_, gate_));
  }
  void AwaitClosing(int most) {
    for (int now = closing_; now < most; now = closing_) closing_.wait(now);
    EXPECT_EQ(closing_, most);
  }
  void Release() {
    if (!released_) open_.set_value();
    released_ = true;
  }

  std::atomic<int> closing_{0};
  std::promise<void> open_;
  std::shared_future<void> gate_ = open_.get_future().share();
  bool released_ = false;
};

// A name that an operator has mended leads elsewhere, past what still hangs where it led before.
TEST_F(DatasetOpenerCloseTest, AMendedNameIsAnotherPlace) {
  DatasetSpec named;
  named.name = "train";
  DatasetSpec opened = named;
  opened.path = "/sticky";
  opener_->Close(1, opened, std::make_shared<SlowToClose>(closing_, gate_));
  AwaitClosing(1);
  EXPECT_EQ(opener_->RunningOperations().at(0).what, "closing the dataset named 'train' ('/sticky')");
  path_of_name_ = "/sticky";
  EXPECT_THAT(Open(1, named, For(milliseconds(1))).get(), StatusIs(Code::kDeadlineExceeded));
  path_of_name_ = "/good";
  EXPECT_OK(Open(1, named).get());
}

// Another user's opens at a place that the first one has something to close at: one run waits for it, not one
// for each of them.
TEST_F(DatasetOpenerCloseTest, WaitingRunsAreOneAPlaceAndUser) {
  for (int i = 0; i < 8; ++i) Close(1, "/sticky/" + std::to_string(i));
  AwaitClosing(8);
  Close(1, "/shared");
  for (int i = 0; i < 600; ++i) EXPECT_OK(Open(2, "/shared").get());
  std::future<Status> waits = Open(1, "/good");
  Release();
  EXPECT_OK(waits.get()) << "its queue was full of runs for what another user opened";
  AwaitClosing(9);
}

TEST_F(DatasetOpenerCloseTest, AFileThatDoesNotCloseHoldsOneThreadAndWhoWantsThatOne) {
  for (int i = 0; i < 20; ++i) Close(1, "/sticky");
  AwaitClosing(1);
  EXPECT_THAT(Open(1, "/sticky", For(milliseconds(1))).get(),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("has not answered")));
  EXPECT_OK(Open(1, "/good").get());
  ASSERT_EQ(opener_->RunningOperations().size(), 1U);
  EXPECT_EQ(opener_->RunningOperations()[0].what, "closing dataset '/sticky'");
  EXPECT_EQ(opener_->RunningOperations()[0].user, 1U);
  std::future<Status> patient = Open(2, "/sticky");
  Release();
  EXPECT_OK(patient.get());
  AwaitClosing(20);
}

TEST_F(DatasetOpenerCloseTest, FilesThatDoNotCloseHoldThreadsOfTheirUserOnly) {
  for (int i = 0; i < 20; ++i) Close(1, "/sticky/" + std::to_string(i));
  AwaitClosing(8);
  EXPECT_OK(Open(2, "/good").get());
  EXPECT_THAT(Open(1, "/good", For(milliseconds(1))).get(),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("s, is closing dataset '/sticky/")));
  Release();
  AwaitClosing(20);
}

// A user whose opens are refused, for they are too many, still gets rid of what it had.
TEST_F(DatasetOpenerCloseTest, WhatIsToBeClosedIsNeverRefused) {
  for (int i = 0; i < 8; ++i) opener_->Open(1, At("/hung/" + std::to_string(i)), {}, [](const auto&) {});
  disk_.Await(8);
  for (int i = 0; i < 512; ++i) opener_->Open(1, At("/more/" + std::to_string(i)), {}, [](const auto&) {});
  EXPECT_THAT(Open(1, "/good").get(), StatusIs(Code::kResourceExhausted));
  Close(1, "/sticky");
  Release();
  disk_.Release();
  AwaitClosing(1);
}

TEST_F(DatasetOpenerCloseTest, TheEndWaitsForClosesAsLongAsItIsTold) {
  Close(1, "/sticky");
  AwaitClosing(1);
  Close(2, "/sticky");
  opener_->Stop();
  EXPECT_FALSE(opener_->Finish(steady_clock::now()));
  Release();
  EXPECT_TRUE(opener_->Finish(steady_clock::time_point::max()));
  EXPECT_EQ(closing_, 2);
  Close(1, "/late");
  EXPECT_EQ(closing_, 3) << "at once, where it is let go of";
  EXPECT_TRUE(opener_->RunningOperations().empty());
}

TEST_F(DatasetOpenerTest, AfterItsEndWhoComesIsToldToo) {
  std::future<Status> waits = Open(1, "/hung/a");
  disk_.Await(1);
  opener_->Stop();
  EXPECT_THAT(waits.get(), StatusIs(Code::kUnavailable, HasSubstr("the daemon is stopping")));
  EXPECT_THAT(Open(1, "/good").get(), StatusIs(Code::kUnavailable, HasSubstr("the daemon is stopping")));
}

}  // namespace
}  // namespace pinfeed
