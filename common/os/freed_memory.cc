// SPDX-License-Identifier: Apache-2.0
#include "common/os/freed_memory.h"

#include <malloc.h>

#include <algorithm>
#include <thread>

#include "common/base/sync.h"

namespace pinfeed {

void ReturnFreedMemory() {
  static Mutex trimming;
  const MutexLock lock(trimming);
  ::malloc_trim(0);
}

void LimitMallocArenas() {
  ::mallopt(M_ARENA_MAX, static_cast<int>(std::max(2U, std::thread::hardware_concurrency())));
}

}  // namespace pinfeed
