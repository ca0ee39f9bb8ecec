// SPDX-License-Identifier: Apache-2.0
// The samples that are resident on GPUs, and the thread that frees them. In: feeds that need samples. Out:
// their memory, shared.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "server/loading/resident_data.h"
#include "server/memory/ongoing_operation.h"

namespace pinfeed {

// Purpose: finds or makes resident samples. Feeds of one user share them if they come from the same open
// dataset by the same load, on one GPU. They stay for a while after the last feed, since a trainer that seeks
// or restarts opens its feed again, but give way to memory that a feed needs. Owns: the data, together with
// their users; a thread, which frees them, as that waits for the GPU. Threads: any. Acquire blocks while the
// memory is allocated; FreeIdle until its deadline. Errors: those of `make`. Invariant: data without users
// are freed by the thread, once nothing is loaded any more.
class ResidentTable {
 public:
  // How long samples stay without a user.
  static constexpr std::chrono::seconds kKeep{15};

  // What feeds must have in common to share samples.
  struct Key {
    uid_t owner = 0;
    std::string gpu_uuid;
    std::shared_ptr<const Dataset> dataset;  // as it was opened
    FeedSpec load;                           // ResidentPlan::load
    bool operator==(const Key&) const = default;
  };
  using Make = std::function<Result<std::shared_ptr<ResidentData>>()>;

  explicit ResidentTable(std::chrono::nanoseconds keep = kKeep) : keep_(keep) {}
  ~ResidentTable();

  void Start();
  // Frees all data and joins the thread. Precondition: they have no users. Idempotent.
  void Stop() PF_EXCLUDES(mutex_);

  // Returns the samples of that key. If there are none, they are made and begin to be loaded.
  Result<std::shared_ptr<ResidentData>> Acquire(const Key& key, const Make& make) PF_EXCLUDES(mutex_);
  // Frees what has no user, on that GPU and perhaps of one owner only, waiting for that at most until
  // `deadline`.
  void FreeIdle(const std::string& gpu_uuid, std::optional<uid_t> owner,
                std::chrono::steady_clock::time_point deadline) PF_EXCLUDES(mutex_);
  // The thread's current step; nothing if it is idle.
  std::optional<OngoingOperation> CurrentOperation() const PF_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  // What a caller of FreeIdle waits for.
  struct Demand {
    std::string gpu_uuid;
    std::optional<uid_t> owner;
  };
  struct Entry {
    Key key;
    std::shared_ptr<ResidentData> data;      // null while it is made
    std::weak_ptr<ResidentData> users = {};  // what Acquire gave out; shares the ownership of `data`
    std::optional<Clock::time_point> idle_since = {};  // seen without users
    bool stopped = false;                              // it is to be freed, and no feed may use it

    bool IsIdle() const { return data != nullptr && users.expired(); }
    // Precondition: IsIdle().
    bool Serves(const Demand& demand) const {
      return data->parts().gpu_uuid == demand.gpu_uuid &&
             data->parts().owner == demand.owner.value_or(data->parts().owner);
    }
    std::shared_ptr<ResidentData> Use();
  };
  void Run() PF_EXCLUDES(mutex_);
  std::vector<Entry>::iterator Find(const Key& key) PF_REQUIRES(mutex_);
  // Takes an entry's data that are to be freed now. Stops the loading of those that could be otherwise.
  std::shared_ptr<ResidentData> TakeUnused() PF_REQUIRES(mutex_);
  bool HasIdle(const Demand& demand) const PF_REQUIRES(mutex_);
  bool IsDemanded(const Entry& entry) const PF_REQUIRES(mutex_);
  // How long the thread sleeps before it looks again.
  std::chrono::nanoseconds Pause() const PF_REQUIRES(mutex_);
  static void Free(std::shared_ptr<ResidentData> data);

  const std::chrono::nanoseconds keep_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Entry> entries_ PF_GUARDED_BY(mutex_);
  std::optional<OngoingOperation> current_ PF_GUARDED_BY(mutex_);
  std::list<Demand> demands_ PF_GUARDED_BY(mutex_);
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // used by the owner only
};

}  // namespace pinfeed
