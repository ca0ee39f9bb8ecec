// SPDX-License-Identifier: Apache-2.0
// Opens and closes datasets on dedicated threads, since storage may hang. In: a spec with its user and
// deadline; datasets to be closed. Out: one answer to each call, even if the storage never responds.
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

// When a call stops waiting.
struct CallLimits {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  std::shared_ptr<const std::atomic<bool>> cancelled = nullptr;  // set when the client cancels; null: never
};

// Purpose: limits the damage of hung storage, such as a dead mount: it blocks one thread per place, and each
// call only until its deadline. A place is a dataset's name with its path, or a normalised path. A close may
// hang like an open, since FUSE and network file systems ask their server at each close(2).
// Owns: the threads that open and close, which users share by the rules of CallQueue; a thread that checks
// deadlines; the datasets to be closed.
// Threads: any. Open and Close do not block. Answers are called on these threads, and after Stop also on the
// caller's.
// Errors: those of `open`; kDeadlineExceeded, which names the dataset; kCancelled; kResourceExhausted if too
// many calls of the user wait for a thread; kUnavailable after Stop.
// Invariants: 1. at most one thread opens or closes at a place; 2. every call is answered once; 3. the lookup
// of a call's dataset begins after the call arrived; 4. a user has at most one queued task per place.
class DatasetOpener {
 public:
  using Opened = Result<std::shared_ptr<const Dataset>>;
  using OpenFunction = std::function<Opened(uid_t user, const DatasetSpec&)>;
  using Answer = std::function<void(const Opened&)>;

  // Returns the configured path of a named dataset; empty if no dataset has that name.
  using PathFunction = std::function<std::string(const std::string& name)>;
  // `open` may block on storage and is called from several threads concurrently. `path_of` must not block.
  DatasetOpener(OpenFunction open, PathFunction path_of);
  // Waits for the threads, however long their storage takes.
  ~DatasetOpener();

  void Open(uid_t user, const DatasetSpec& spec, CallLimits limits, Answer answer) PF_EXCLUDES(mutex_);
  // Destroys `dataset` before the user's next open at that place. The caller holds the last reference. `spec`
  // is the one that opened it; for a named dataset it also has the path that was configured then.
  void Close(uid_t user, const DatasetSpec& spec, std::shared_ptr<const Dataset> dataset) PF_EXCLUDES(mutex_);
  // The user of lists of all named datasets. (uid_t)-1 is never a user: see chown(2).
  static constexpr uid_t kListAccount = UINT32_MAX;
  // The name of each thread that opens and closes.
  static constexpr const char* kThreadName = "dataset";
  struct Operation {
    uid_t user = 0;    // its thread counts towards this user
    std::string what;  // "opening dataset '/data/a.npy'"
    std::chrono::steady_clock::time_point since;
  };
  // The opens and closes that are running now.
  std::vector<Operation> RunningOperations() const PF_EXCLUDES(mutex_);
  // Answers all waiting and later calls with kUnavailable. Idempotent; one thread at a time.
  void Stop() PF_EXCLUDES(mutex_);
  // After Stop: waits until all datasets are closed and no thread works; then Close destroys immediately.
  // Returns false if that takes longer than `deadline`: threads still use this object, so it must stay alive.
  bool Finish(std::chrono::steady_clock::time_point deadline) { return queue_.Finish(deadline); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiter {
    uid_t user = 0;
    DatasetSpec spec;
    Clock::time_point since;
    CallLimits limits;
    Answer answer;
  };
  using Waiters = std::list<Waiter>;
  struct PendingClose {
    uid_t user = 0;
    std::shared_ptr<const Dataset> dataset;
  };
  struct PlaceState {
    DatasetSpec place;
    std::optional<Operation> running;
    Waiters served;                   // calls that the running open answers; all have the same spec
    Waiters waiting;                  // calls for a later open
    std::list<PendingClose> closing;  // datasets for a later task to close
    std::set<uid_t> queued;           // users with a task in the queue
  };
  using PlaceStates = std::list<PlaceState>;
  // What one run does at a place: it closes these datasets if there are any, otherwise it opens `spec`.
  struct Task {
    std::list<PendingClose> closing;
    DatasetSpec spec;
  };

  // Returns the name and the normalised path of the spec, without its other fields.
  DatasetSpec PlaceOf(const DatasetSpec& spec) const;
  PlaceStates::iterator Find(const DatasetSpec& place) PF_REQUIRES(mutex_);
  PlaceStates::iterator FindOrAdd(const DatasetSpec& place) PF_REQUIRES(mutex_);
  void EraseIfIdle(PlaceStates::iterator state) PF_REQUIRES(mutex_);
  // Queues a task of the user at that place. Refuses the user's waiting calls there if the queue is full.
  void Submit(uid_t user, const DatasetSpec& place) PF_EXCLUDES(mutex_);
  // Takes the user's waiting calls at that place. Sets `closes` if the user also has datasets to close there.
  Waiters TakeRefused(uid_t user, const DatasetSpec& place, bool& closes) PF_EXCLUDES(mutex_);
  void Run(uid_t user, const DatasetSpec& place) PF_EXCLUDES(mutex_);
  // Returns nothing if there is nothing left to do.
  std::optional<Task> BeginTask(uid_t user, const DatasetSpec& place) PF_EXCLUDES(mutex_);
  // Returns the calls that were served, and queues the next tasks.
  Waiters EndTask(const DatasetSpec& place) PF_EXCLUDES(mutex_);
  // Calls `open`. kResourceExhausted if memory runs out.
  Opened CallOpen(uid_t user, const DatasetSpec& spec) const PF_EXCLUDES(mutex_);
  void WatchLimits() PF_EXCLUDES(mutex_);
  // Moves the calls that are late or cancelled from `from` to `out`, each with its error.
  void TakeExpired(const PlaceState& state, Waiters& from, std::vector<std::pair<Answer, Status>>& out)
      PF_REQUIRES(mutex_);
  Status TimeoutStatus(const PlaceState& state, const Waiter& waiter, Clock::time_point now) const
      PF_REQUIRES(mutex_);
  // When to check limits again; nothing while no call waits.
  std::optional<Clock::time_point> NextCheck() const PF_REQUIRES(mutex_);

  const OpenFunction open_;
  const PathFunction path_of_;
  mutable Mutex mutex_;
  CondVar changed_;  // a call waits, or Stop was called
  PlaceStates places_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  CallQueue queue_;
  std::thread watcher_;  // owner only
};

}  // namespace pinfeed
