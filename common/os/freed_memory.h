// SPDX-License-Identifier: Apache-2.0
// Gives freed memory back to the system.
#pragma once

namespace pinfeed {

// glibc keeps much of what many small objects took, which would count as used although it is free. Threads:
// any; calls run one after the other, since two concurrent malloc_trim crash where a sanitizer replaces the
// allocator.
void ReturnFreedMemory();

// Has malloc make no more arenas than there are processors. What is free in one arena is of no use to the
// others, and not all of it can be given back. Call it before any thread starts.
void LimitMallocArenas();

}  // namespace pinfeed
