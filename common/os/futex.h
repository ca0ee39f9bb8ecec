// SPDX-License-Identifier: Apache-2.0
// Sleeping on a 32-bit word in shared memory (futex(2), non-private: the two sides are two processes).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace pinfeed {

// Sleeps while *word == expected, at most `timeout`. Returns on a wake, a timeout, a signal or a changed
// word: the caller loops. Works on a read-only mapping.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout);

// Wakes every process that sleeps on the word.
void FutexWakeAll(std::atomic<uint32_t>& word);

}  // namespace pinfeed
