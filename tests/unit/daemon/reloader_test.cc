// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/reloader.h"

#include <map>

#include "common/base/sync.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using Steady = std::chrono::steady_clock;
constexpr std::chrono::seconds kLong(60);

// What storage is to a reading: it answers when it is told to.
class Storage {
 public:
  // Blocks until the reading of this number may go on.
  Result<LoadedConfig> Read(int number, const Reloader::AtStep& at) PF_EXCLUDES(mutex_) {
    at("file " + std::to_string(number));
    const MutexLock lock(mutex_);
    ++begun_;
    changed_.NotifyAll();
    while (answers_.count(number) == 0) changed_.Wait(mutex_);
    return answers_.at(number);
  }
  void Give(int number, Result<LoadedConfig> answer) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    answers_.emplace(number, std::move(answer));
    changed_.NotifyAll();
  }
  void AwaitBegun(int count) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    while (begun_ < count) {
      if (!changed_.WaitUntil(mutex_, Steady::now() + kLong)) FAIL() << "only " << begun_ << " have begun";
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int begun_ PF_GUARDED_BY(mutex_) = 0;
  std::map<int, Result<LoadedConfig>> answers_ PF_GUARDED_BY(mutex_);
};

LoadedConfig Limit(uint32_t max_sessions) {
  LoadedConfig loaded;
  loaded.command_line.config.max_sessions = max_sessions;
  return loaded;
}

class ReloaderTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kNoPatience{0};

  void Make(std::chrono::milliseconds timeout) {
    reloader_.emplace(Reloader::Parts{
        .main = main_,
        .make_load =
            [this] {
              return [storage = storage_, number = ++readings_](const Reloader::AtStep& at) {
                return storage->Read(number, at);
              };
            },
        .adopt =
            [this](const std::string& who, const LoadedConfig& loaded) {
              adopted_.push_back(who + ": " + std::to_string(loaded.command_line.config.max_sessions));
              return ReloadReport{{"max_sessions"}, {}, {}};
            },
        .outcome = [this](bool good) { told_.emplace_back(good ? "good" : "bad"); },
        .begun = [this] { told_.emplace_back("begun"); },
        .ready = [this](const std::string& remark) { told_.push_back("ready" + remark); },
        .timeout = timeout});
  }
  void Request(const std::string& who) {
    reloader_->Request(who, [this, who](const Result<ReloadReport>& report) {
      answers_.push_back(who + ": " + (report.ok() ? "done" : report.status().message()));
    });
  }
  // What the main thread does until so many requests of other threads have come.
  void RunMain(int count) {
    for (int i = 0; i < count; ++i) {
      const MutexLock lock(mutex_);
      while (woken_ == 0) {
        if (!changed_.WaitUntil(mutex_, Steady::now() + kLong)) FAIL() << "nothing was read";
      }
      --woken_;
    }
    main_.RunAll();
  }

  const std::shared_ptr<Storage> storage_ = std::make_shared<Storage>();
  std::vector<std::string> adopted_;
  std::vector<std::string> told_;
  std::vector<std::string> answers_;
  int readings_ = 0;
  Mutex mutex_;
  CondVar changed_;
  int woken_ PF_GUARDED_BY(mutex_) = 0;
  RequestQueue main_{[this] {
    const MutexLock lock(mutex_);
    ++woken_;
    changed_.NotifyAll();
  }};
  std::optional<Reloader> reloader_;
};

TEST_F(ReloaderTest, WhatWasReadIsAdoptedOnTheMainThreadAndAnswered) {
  Make(kLong);
  Request("a");
  storage_->AwaitBegun(1);
  EXPECT_THAT(told_, ElementsAre("begun"));
  EXPECT_GT(reloader_->CheckTimeout(), Steady::now());
  storage_->Give(1, Limit(7));
  RunMain(1);
  EXPECT_THAT(adopted_, ElementsAre("a: 7"));
  EXPECT_THAT(told_, ElementsAre("begun", "good", "ready"));
  EXPECT_THAT(answers_, ElementsAre("a: done"));
  EXPECT_EQ(reloader_->CheckTimeout(), Steady::time_point::max());
}

TEST_F(ReloaderTest, AFaultChangesNothingAndIsAnswered) {
  Make(kLong);
  Request("a");
  storage_->Give(1, InvalidArgument("file:1: no"));
  RunMain(1);
  EXPECT_THAT(adopted_, IsEmpty());
  EXPECT_THAT(told_, ElementsAre("begun", "bad", "ready; the configuration could not be reloaded"));
  EXPECT_THAT(answers_, ElementsAre("a: file:1: no"));
}

// For the service manager it is one long reload: ready comes behind the last.
TEST_F(ReloaderTest, RequestsThatComeMeanwhileAreServedTogetherByALaterReading) {
  Make(kLong);
  Request("a");
  Request("b");
  Request("c");
  EXPECT_EQ(readings_, 1);
  storage_->Give(1, Limit(1));
  RunMain(1);
  EXPECT_EQ(readings_, 2);
  EXPECT_THAT(answers_, ElementsAre("a: done"));
  EXPECT_THAT(told_, ElementsAre("begun", "begun", "begun", "good"));
  storage_->Give(2, Limit(2));
  RunMain(1);
  EXPECT_THAT(adopted_, ElementsAre("a: 1", "b and 1 more: 2"));
  EXPECT_THAT(answers_, ElementsAre("a: done", "b: done", "c: done"));
  EXPECT_THAT(told_, ElementsAre("begun", "begun", "begun", "good", "good", "ready"));
}

TEST_F(ReloaderTest, WhatHangsIsToldOnceWithWhatItIsAtAndTakenWhenItComes) {
  Make(kNoPatience);
  Request("a");
  storage_->AwaitBegun(1);
  EXPECT_EQ(reloader_->CheckTimeout(), Steady::time_point::max());
  EXPECT_EQ(reloader_->CheckTimeout(), Steady::time_point::max());
  EXPECT_THAT(answers_, ElementsAre(HasSubstr("not done after 0 s, at file 1; does its storage answer?")));
  EXPECT_THAT(told_, ElementsAre("begun", "bad", "ready; a reload hangs, at file 1"));
  storage_->Give(1, Limit(3));
  RunMain(1);
  EXPECT_THAT(adopted_, ElementsAre("a: 3"));
  EXPECT_EQ(answers_.size(), 1U);
  EXPECT_THAT(told_, ElementsAre("begun", "bad", "ready; a reload hangs, at file 1", "good", "ready"));
}

TEST_F(ReloaderTest, WhatHangsIsGivenUpForTheNextAndNeverFollowsIt) {
  Make(kNoPatience);
  Request("a");
  Request("b");  // waits
  storage_->AwaitBegun(1);
  (void)reloader_->CheckTimeout();
  EXPECT_EQ(readings_, 2);
  storage_->Give(2, Limit(2));
  RunMain(1);
  EXPECT_THAT(adopted_, ElementsAre("b: 2"));
  EXPECT_THAT(answers_, ElementsAre(HasSubstr("a: reload the configuration: not done"), "b: done"));
  storage_->Give(1, Limit(1));
  reloader_->Stop();
  EXPECT_TRUE(reloader_->Finish(Steady::now() + kLong));
  main_.RunAll();
  EXPECT_THAT(adopted_, ElementsAre("b: 2"));
  EXPECT_EQ(answers_.size(), 2U);
}

TEST_F(ReloaderTest, NoMoreThreadsHangThanMay) {
  Make(kNoPatience);
  const int most = static_cast<int>(Reloader::kMaxAbandoned) + 1;
  for (int i = 1; i <= most; ++i) {
    Request("a");
    storage_->AwaitBegun(i);
    (void)reloader_->CheckTimeout();
  }
  answers_.clear();
  told_.clear();
  Request("b");
  EXPECT_EQ(readings_, most);
  EXPECT_THAT(
      answers_,
      ElementsAre(HasSubstr("b: reload the configuration: 5 earlier reloads hang, the last at file 5")));
  EXPECT_THAT(told_, ElementsAre("begun", "bad", "ready; the configuration could not be reloaded"));
  storage_->Give(most, Limit(5));  // the last of them is the one that counts
  RunMain(1);
  EXPECT_THAT(adopted_, ElementsAre("a: 5"));
  Request("c");
  storage_->Give(most + 1, Limit(6));
  RunMain(1);
  EXPECT_EQ(adopted_.back(), "c: 6");
  for (int i = 1; i < most; ++i) storage_->Give(i, Limit(0));
  reloader_->Stop();
  EXPECT_TRUE(reloader_->Finish(Steady::now() + kLong));
}

TEST_F(ReloaderTest, StopAnswersWhoeverWaitsAndLeavesAThreadThatHangs) {
  Make(kLong);
  Request("a");
  Request("b");
  storage_->AwaitBegun(1);
  reloader_->Stop();
  Request("c");
  EXPECT_THAT(answers_, ElementsAre(HasSubstr("a: reload the configuration: the daemon is stopping"),
                                    HasSubstr("b: "), HasSubstr("c: ")));
  EXPECT_THAT(told_, ElementsAre("begun", "begun"));  // ready would take back that it is stopping
  EXPECT_FALSE(reloader_->Finish(Steady::now()));
  reloader_.reset();
  storage_->Give(1, Limit(1));
  main_.Close();
  EXPECT_THAT(adopted_, IsEmpty());
}

}  // namespace
}  // namespace pinfeed
