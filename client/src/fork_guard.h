// SPDX-License-Identifier: Apache-2.0
// Tells a process from its forked children: a child shares its parent's mappings and sockets, so it must not
// act on them. And keeps a fork away from calls that a copy of the process could not bear.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/base/status.h"

namespace pinfeed {

// How many forks lie between the library's load and this process. One relaxed load.
uint64_t ForkGeneration();

// Purpose: remembers the process that made an object. A value; any thread.
class ForkGuard {
 public:
  bool InOwner() const { return made_in_ == ForkGeneration(); }

 private:
  uint64_t made_in_ = ForkGeneration();
};

// Purpose: no fork while one lives: fork(2) in another thread waits for its end, lest a child inherit gRPC's
// or protobuf's locks, half-made statics and lists of threads as they are amid a call.
// Owns: a share of a process-wide lock. Threads: any, each its own; not to be held twice by one, nor across a
// fork of the holder's own. Errors: kDeadlineExceeded when a fork is pending all the time;
// kFailedPrecondition in a process that was forked in the middle of a call: a fork waits for kMaxForkWait
// only, lest a slow call stop its process.
class NoForkScope {
 public:
  static constexpr std::chrono::seconds kMaxForkWait{5};

  explicit NoForkScope(std::chrono::steady_clock::time_point deadline);
  ~NoForkScope();
  NoForkScope(const NoForkScope&) = delete;
  NoForkScope& operator=(const NoForkScope&) = delete;

  const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace pinfeed
