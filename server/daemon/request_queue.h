// SPDX-License-Identifier: Apache-2.0
// What other threads want of the main thread. In: requests, from any thread. Out: the same, run one after
// the other where the daemon's own state may be touched.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: hands work to the one thread that runs RunAll. Threads: Submit any; the rest that one. Errors: see
// Submit. Invariant: what was taken is run.
class RequestQueue {
 public:
  using Request = std::function<void()>;
  // `wake` makes the thread come to RunAll; called from any thread.
  explicit RequestQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  // False once it is closed: the request is not taken.
  bool Submit(Request request) PF_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (closed_) return false;
      waiting_.push_back(std::move(request));
    }
    wake_();
    return true;
  }
  void RunAll() PF_EXCLUDES(mutex_) {
    std::vector<Request> requests;
    {
      const MutexLock lock(mutex_);
      requests.swap(waiting_);
    }
    for (const Request& request : requests) request();
  }
  // Takes no more, and runs what is left.
  void Close() PF_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
    }
    RunAll();
  }

 private:
  const std::function<void()> wake_;
  Mutex mutex_;
  std::vector<Request> waiting_ PF_GUARDED_BY(mutex_);
  bool closed_ PF_GUARDED_BY(mutex_) = false;
};

}  // namespace pinfeed
