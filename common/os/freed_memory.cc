// SPDX-License-Identifier: Apache-2.0
#include "common/os/freed_memory.h"

#include <malloc.h>

#include "common/base/sync.h"

namespace pinfeed {

void ReturnFreedMemory() {
  static Mutex trimming;
  const MutexLock lock(trimming);
  ::malloc_trim(0);
}

}  // namespace pinfeed
