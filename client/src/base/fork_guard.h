// SPDX-License-Identifier: Apache-2.0
// Protects the library against fork(2). A child shares its parent's mappings and sockets, so each object
// records the process that created it. A fork also waits for calls whose locks a child must not inherit.
#pragma once

#include <pthread.h>

#include <chrono>
#include <cstdint>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// The number of forks between loading the library and this process. One relaxed load.
uint64_t ForkGeneration();

// Purpose: records the process that created an object. Copyable. Threads: any.
class ForkGuard {
 public:
  bool InCreatorProcess() const { return created_in_ == ForkGeneration(); }

 private:
  uint64_t created_in_ = ForkGeneration();
};

// Purpose: prevents forks while it lives. fork(2) in another thread waits until the scope ends. Otherwise a
// child could inherit the locks, statics and thread lists of gRPC and protobuf in the middle of a call. Owns:
// a share of a process-wide lock. Threads: any, each with its own; one thread must not nest scopes or fork
// inside one. Errors: kDeadlineExceeded if another thread's fork is still pending at the deadline. A
// fork waits for at most kMaxForkWait, so that a slow call does not stop the process, and then forks anyway.
// In the child of such a fork Enter returns kFailedPrecondition.
class NoForkScope {
 public:
  static constexpr std::chrono::seconds kMaxForkWait{5};

  static Result<NoForkScope> Enter(std::chrono::steady_clock::time_point deadline);

 private:
  struct LockTraits {
    using Handle = pthread_rwlock_t*;
    static constexpr Handle Null() { return nullptr; }
    static void Close(Handle lock) noexcept { ::pthread_rwlock_unlock(lock); }
  };
  explicit NoForkScope(pthread_rwlock_t* locked) : lock_(locked) {}

  UniqueHandle<LockTraits> lock_;
};

// Purpose: a fork waits for this lock, so that a child never inherits it from a thread that it lacks.
// Borrows: the lock, of the whole process. Created when the library is loaded, never destroyed before it is
// unloaded.
class HeldAcrossForks {
 public:
  explicit HeldAcrossForks(Mutex& mutex);
};

}  // namespace pinfeed
