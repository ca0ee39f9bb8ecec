// SPDX-License-Identifier: Apache-2.0
// Gives freed memory back to the system.
#pragma once

namespace pinfeed {

// glibc keeps much of what many small objects took, which would count as used although it is free. Threads:
// any; calls run one after the other, since two concurrent malloc_trim crash where a sanitizer replaces the
// allocator.
void ReturnFreedMemory();

}  // namespace pinfeed
