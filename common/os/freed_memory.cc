// SPDX-License-Identifier: Apache-2.0
#include "common/os/freed_memory.h"

#include <malloc.h>

#include "common/base/sync.h"

namespace pinfeed {

void ReturnLargeObjects() {
  // Setting either ends the adjustment of both (mallopt(3)).
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 2 << 20);
}

void ReturnFreedMemory() {
  static Mutex trimming;
  const MutexLock lock(trimming);
  ::malloc_trim(0);
}

}  // namespace pinfeed
