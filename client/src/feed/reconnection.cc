// SPDX-License-Identifier: Apache-2.0
#include "client/src/feed/reconnection.h"

#include <algorithm>
#include <thread>

namespace pinfeed {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

}  // namespace

void Reconnection::Begin() {
  backoff_.Reset();
  lost_at_ = next_try_ = steady_clock::now();
  last_try_ = OkStatus();
}

Status Reconnection::CheckTimeout() {
  if (!timeout_ || steady_clock::now() < lost_at_ + *timeout_) return OkStatus();
  const std::string tried = last_try_.ok() ? "" : "; the last try: " + last_try_.message();
  lost_at_ = steady_clock::now();
  const std::string how =
      timeout_->count() == 0 ? " is gone" : " did not come back within " + Seconds(*timeout_);
  return Unavailable("the daemon at " + address_ + how + tried);
}

bool Reconnection::Due() const {
  return Tries() && steady_clock::now() >= next_try_;
}

Status Reconnection::Wait(const Deadline& deadline) const {
  nanoseconds pause = next_try_ - steady_clock::now();
  if (timeout_) pause = std::min<nanoseconds>(pause, lost_at_ + *timeout_ - steady_clock::now());
  if (deadline.Passed()) {
    return Status(Code::kDeadlineExceeded,
                  "the feed has no session with the daemon at " + address_ + " yet: " + last_try_.message());
  }
  if (pause > nanoseconds(0)) std::this_thread::sleep_for(deadline.AtMost(pause));
  return OkStatus();
}

void Reconnection::Failed(Status tried) {
  last_try_ = std::move(tried);
  next_try_ = steady_clock::now() + backoff_.Next();
}

}  // namespace pinfeed
