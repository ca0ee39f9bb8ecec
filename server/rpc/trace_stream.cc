// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/trace_stream.h"

#include <algorithm>

namespace pinfeed {
namespace {

constexpr std::chrono::seconds kInterruptGrace{1};

}  // namespace

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
      while (writing_ && in_time) {  // past the deadline too: gRPC reads the message until the write is done
        if (cancelled) {
          changed_.Wait(mutex_);
        } else {
          const auto until = interrupted_ ? std::min(deadline, *interrupted_ + kInterruptGrace) : deadline;
          in_time = changed_.WaitUntil(mutex_, until) || std::chrono::steady_clock::now() < until;
        }
      }
      if (!writing_) return !gone_ && !cancelled;
    }
    context_.TryCancel();  // without the lock: OnCancel may run on this thread
  }
}

bool TraceStream::SleepUntil(std::chrono::steady_clock::time_point time) {
  const MutexLock lock(mutex_);
  while (!gone_ && !interrupted_ && changed_.WaitUntil(mutex_, time)) {
  }
  return !gone_ && !interrupted_;
}

void TraceStream::Interrupt() {
  const MutexLock lock(mutex_);
  interrupted_ = std::chrono::steady_clock::now();
  changed_.NotifyAll();
}

bool TraceStream::interrupted() const {
  const MutexLock lock(mutex_);
  return interrupted_.has_value();
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
