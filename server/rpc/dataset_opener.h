// SPDX-License-Identifier: Apache-2.0
// Calls that want a dataset, and the threads that look at the disk for them. In: a spec, who wants it and how
// long they wait. Out: one answer to each, also when the disk gives none.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/feed_spec.h"
#include "common/result.h"
#include "common/sync.h"
#include "server/rpc/call_queue.h"
#include "server/source/dataset.h"

namespace pinfeed {

// How long a call waits.
struct Patience {
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  std::shared_ptr<const std::atomic<bool>> gone = nullptr;  // set once nobody waits any more; null: never
};

// Purpose: keeps storage that does not answer (a mount that hangs) from holding more than a few threads of
// its own, and no call for longer than its client waits. Owns: the threads that open, of which a user has a
// part (CallQueue's rule); one that watches the patience of who waits. Threads: Open from any thread, blocks
// for nothing; answers come on its threads. Errors: those of `open`; kDeadlineExceeded, which names the
// dataset, when it is not open in time; kCancelled for who is gone; kResourceExhausted when a user has too
// many that wait for a thread. Invariants: 1. one thread at most is at a dataset; 2. every call is answered
// once; 3. what it gets was looked up after it came.
class DatasetOpener {
 public:
  using Opened = Result<std::shared_ptr<const Dataset>>;
  using OpenFunction = std::function<Opened(const DatasetSpec&)>;
  using Answer = std::function<void(const Opened&)>;

  // `open` blocks as long as the disk does, and is called from any number of threads at once.
  explicit DatasetOpener(OpenFunction open);
  // Waits for the threads that are at a dataset; whoever waits is told to try again.
  ~DatasetOpener();
  DatasetOpener(const DatasetOpener&) = delete;
  DatasetOpener& operator=(const DatasetOpener&) = delete;

  void Open(uid_t user, const DatasetSpec& spec, Patience patience, Answer answer) PF_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiter {
    uid_t user = 0;
    Clock::time_point since;
    Patience patience;
    Answer answer;
  };
  using Waiters = std::list<Waiter>;
  struct Work {  // of one dataset, waiting for a thread or at the disk
    DatasetSpec spec;
    std::optional<Clock::time_point> running;  // since when
    uid_t runner = 0;                          // for whom it runs
    Waiters served;                            // by what runs
    Waiters waiting;                           // for the next run
    std::set<uid_t> submitted;                 // for whom the next run waits in the queue, or will
  };
  using Works = std::list<Work>;

  Works::iterator Find(const DatasetSpec& spec) PF_REQUIRES(mutex_);
  // Lets a run of it wait for a thread, on that user's account.
  void Submit(uid_t user, const DatasetSpec& spec) PF_EXCLUDES(mutex_);
  void Run(uid_t user, const DatasetSpec& spec) PF_EXCLUDES(mutex_);
  // As `open`; kResourceExhausted when there is no memory for it.
  Opened Ask(const DatasetSpec& spec) const PF_EXCLUDES(mutex_);
  void Watch() PF_EXCLUDES(mutex_);
  // Moves who waits no longer out of `from`, and gives the errors for them.
  void TakeImpatient(const Work& work, Waiters& from, std::vector<std::pair<Answer, Status>>& out)
      PF_REQUIRES(mutex_);
  Status TooLate(const Work& work, const Waiter& waiter, Clock::time_point now) const PF_REQUIRES(mutex_);
  // When to look at patience again; none while nobody waits.
  std::optional<Clock::time_point> NextLook() const PF_REQUIRES(mutex_);

  const OpenFunction open_;
  Mutex mutex_;
  CondVar changed_;  // somebody waits, or it ends
  Works works_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  CallQueue disk_;
  std::thread watch_;  // owner only
};

}  // namespace pinfeed
