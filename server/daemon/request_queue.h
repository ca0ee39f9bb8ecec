// SPDX-License-Identifier: Apache-2.0
// Runs requests of other threads on the main thread. In: requests, from any thread. Out: the same requests,
// run one after another where the daemon's own state may be touched.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "common/base/sync.h"

namespace pinfeed {

// Purpose: passes work to the one thread that calls RunAll. Threads: Submit from any thread, the rest from
// that one. Errors: see Submit. Invariant: every accepted request is run.
class RequestQueue {
 public:
  using Request = std::function<void()>;
  // `wake` makes the main thread call RunAll. It is called from any thread.
  explicit RequestQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Returns false, without accepting the request, once the queue is closed.
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
  // Refuses further requests and runs the remaining ones.
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
