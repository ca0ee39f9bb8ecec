// SPDX-License-Identifier: Apache-2.0
// Calls that want a dataset, and the threads that are at the disk for them. In: a spec, who wants it and how
// long they wait; datasets that nobody wants any more. Out: one answer to each call, also when the disk gives
// none.
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

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/spec/feed_spec.h"
#include "server/dataset/dataset.h"
#include "server/rpc/call_queue.h"

namespace pinfeed {

// How long a call waits.
struct Patience {
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  std::shared_ptr<const std::atomic<bool>> gone = nullptr;  // set once nobody waits any more; null: never
};

// Purpose: keeps storage that does not answer (a mount that hangs) from holding more than one thread a place,
// and any call for longer than its client waits. A close waits for storage as an open does: at each close(2)
// FUSE asks its server, and network file systems theirs. Owns: the threads that open and close, of which a
// user has a part (CallQueue's rule); one that watches the patience of who waits; the datasets that are to be
// closed. Threads: any; Open and Close block for nothing; answers come on its threads, at the end on the
// caller's. Errors: those of `open`; kDeadlineExceeded, which names the dataset, when it is not open in time;
// kCancelled for who is gone; kResourceExhausted when a user has too many that wait for a thread;
// kUnavailable at the end. Invariants: 1. one thread at most is at a place: a name with its path, or a path
// however it is written; 2. every call is answered once; 3. what it gets was looked up after it came; 4. a
// user has one run at most in the queue for a place.
class DatasetOpener {
 public:
  using Opened = Result<std::shared_ptr<const Dataset>>;
  using OpenFunction = std::function<Opened(uid_t user, const DatasetSpec&)>;
  using Answer = std::function<void(const Opened&)>;

  // Where a named dataset lies, as configured now; empty: there is none of that name.
  using PathFunction = std::function<std::string(const std::string& name)>;
  // `open` blocks as long as the disk does, and is called from any number of threads at once; `path_of`
  // blocks for nothing.
  DatasetOpener(OpenFunction open, PathFunction path_of);
  // Waits for the threads that are at a dataset.
  ~DatasetOpener();
  DatasetOpener(const DatasetOpener&) = delete;
  DatasetOpener& operator=(const DatasetOpener&) = delete;

  void Open(uid_t user, const DatasetSpec& spec, Patience patience, Answer answer) PF_EXCLUDES(mutex_);
  // Destroys `dataset`, of which the caller has the only share, opened by `spec` for that user, where a name
  // comes with the path that it stood for: before that user opens at that place again.
  void Close(uid_t user, const DatasetSpec& spec, std::shared_ptr<const Dataset> dataset) PF_EXCLUDES(mutex_);
  // What its threads are at, each thread named kThreadName.
  static constexpr const char* kThreadName = "dataset";
  struct UnderWay {
    uid_t user = 0;    // on whose account
    std::string what;  // "opening dataset '/data/a.npy'"
    std::chrono::steady_clock::time_point since;
  };
  std::vector<UnderWay> under_way() const PF_EXCLUDES(mutex_);
  // Tells whoever waits, and whoever comes, that the daemon stops. Idempotent; one thread at a time.
  void Stop() PF_EXCLUDES(mutex_);
  // After Stop: waits until what is to be closed is, and nobody is at a dataset; Close destroys at once then.
  // False when that is not so at `deadline`: what is at a dataset still uses this, which must live on.
  bool Finish(std::chrono::steady_clock::time_point deadline) { return disk_.Finish(deadline); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiter {
    uid_t user = 0;
    DatasetSpec spec;
    Clock::time_point since;
    Patience patience;
    Answer answer;
  };
  using Waiters = std::list<Waiter>;
  struct Unwanted {
    uid_t user = 0;
    std::shared_ptr<const Dataset> dataset;
  };
  struct Work {  // at one place, waiting for a thread or at the disk
    DatasetSpec place;
    std::optional<UnderWay> running;
    Waiters served;               // by what runs: they have one spec
    Waiters waiting;              // for a next run
    std::list<Unwanted> closing;  // by a next run
    std::set<uid_t> queued;       // for whom a run waits in the queue
  };
  using Works = std::list<Work>;
  // What a user's turn at a place is for: these datasets are closed, or that spec is opened.
  struct Turn {
    std::list<Unwanted> closing;
    DatasetSpec spec;
  };

  // The spec of the place alone: what else it says is how to read what lies there.
  DatasetSpec PlaceOf(const DatasetSpec& spec) const;
  Works::iterator Find(const DatasetSpec& place) PF_REQUIRES(mutex_);
  Works::iterator FindOrAdd(const DatasetSpec& place) PF_REQUIRES(mutex_);
  void EraseIfIdle(Works::iterator work) PF_REQUIRES(mutex_);
  // Lets a run at it wait for a thread, on that user's account.
  void Submit(uid_t user, const DatasetSpec& place) PF_EXCLUDES(mutex_);
  // Without one: those of the user that wait there. `closes`: it still has datasets there to close.
  Waiters TakeRefused(uid_t user, const DatasetSpec& place, bool& closes) PF_EXCLUDES(mutex_);
  void Run(uid_t user, const DatasetSpec& place) PF_EXCLUDES(mutex_);
  // Nothing when there is nothing to do any more.
  std::optional<Turn> Begin(uid_t user, const DatasetSpec& place) PF_EXCLUDES(mutex_);
  // Gives those that are served, and lets the next run.
  Waiters End(const DatasetSpec& place) PF_EXCLUDES(mutex_);
  // As `open`; kResourceExhausted when there is no memory for it.
  Opened Ask(uid_t user, const DatasetSpec& spec) const PF_EXCLUDES(mutex_);
  void Watch() PF_EXCLUDES(mutex_);
  // Moves who waits no longer out of `from`, and gives the errors for them.
  void TakeImpatient(const Work& work, Waiters& from, std::vector<std::pair<Answer, Status>>& out)
      PF_REQUIRES(mutex_);
  Status TooLate(const Work& work, const Waiter& waiter, Clock::time_point now) const PF_REQUIRES(mutex_);
  // When to look at patience again; none while nobody waits.
  std::optional<Clock::time_point> NextLook() const PF_REQUIRES(mutex_);

  const OpenFunction open_;
  const PathFunction path_of_;
  mutable Mutex mutex_;
  CondVar changed_;  // somebody waits, or it ends
  Works works_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  CallQueue disk_;
  std::thread watch_;  // owner only
};

}  // namespace pinfeed
