// SPDX-License-Identifier: Apache-2.0
// Keeps signals of the host program away from a library's threads.
#pragma once

#include <pthread.h>

#include <csignal>

namespace pinfeed {

// Purpose: blocks all signals on this thread while it lives. A thread that starts meanwhile keeps them
// blocked. Threads: the one that created it.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace pinfeed
