// SPDX-License-Identifier: Apache-2.0
// Gives freed memory back to the system.
#pragma once

namespace pinfeed {

// glibc keeps much of what many small objects took. It would count as used although nobody has it. Threads:
// any, one at a time: where a sanitizer replaces the allocator, glibc's own begins here, which two at once
// break.
void ReturnFreedMemory();

}  // namespace pinfeed
