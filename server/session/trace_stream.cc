// SPDX-License-Identifier: Apache-2.0
#include "server/session/trace_stream.h"

namespace pinfeed {

bool TraceStream::Write(const v1::TraceResponse& message, std::chrono::steady_clock::time_point deadline) {
  {
    const MutexLock lock(mutex_);
    if (gone_) return false;
    writing_ = true;
  }
  StartWrite(&message);
  for (bool cancelled = false;; cancelled = true) {
    {
      const MutexLock lock(mutex_);
      bool in_time = true;
      while (writing_ && in_time) {  // to the very end: until then gRPC reads the message
        if (cancelled) {
          changed_.Wait(mutex_);
        } else {
          in_time = changed_.WaitUntil(mutex_, deadline);
        }
      }
      if (!writing_) return !gone_ && !cancelled;
    }
    context_.TryCancel();  // without the lock: OnCancel may come at once, on this thread
  }
}

bool TraceStream::SleepUntil(std::chrono::steady_clock::time_point time) {
  const MutexLock lock(mutex_);
  while (!gone_ && changed_.WaitUntil(mutex_, time)) {
  }
  return !gone_;
}

void TraceStream::OnWriteDone(bool ok) {
  const MutexLock lock(mutex_);
  writing_ = false;
  gone_ = gone_ || !ok;
  changed_.NotifyAll();
}

void TraceStream::OnCancel() {
  const MutexLock lock(mutex_);
  gone_ = true;
  changed_.NotifyAll();
}

}  // namespace pinfeed
