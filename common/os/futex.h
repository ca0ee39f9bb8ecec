// SPDX-License-Identifier: Apache-2.0
// Waits on a 32-bit word in shared memory (futex(2), not private, because two processes use it).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace pinfeed {

// Sleeps while *word == expected, at most `timeout`. Returns after a wake, a timeout, a signal or a change of
// the word, so call it in a loop. Works on a read-only mapping.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout);

// Wakes every process that sleeps on the word.
void FutexWakeAll(std::atomic<uint32_t>& word);

}  // namespace pinfeed
