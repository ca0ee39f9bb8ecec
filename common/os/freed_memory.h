// SPDX-License-Identifier: Apache-2.0
// Gives freed memory back to the system.
#pragma once

namespace pinfeed {

// glibc keeps much of what many small objects took, which would count as used although it is free. Threads:
// any; calls run one after the other, since two concurrent malloc_trim crash where a sanitizer replaces the
// allocator.
void ReturnFreedMemory();

// Has glibc give large objects back as soon as they are freed. Left alone, it raises the size above which it
// does so to as much as 32 MiB, and keeps twice as much in each arena, which malloc_trim does not return.
// Call it before there are threads.
void ReturnLargeObjects();

}  // namespace pinfeed
