// SPDX-License-Identifier: Apache-2.0
// What the ceilings share: threads that do one kind of work for a given time, counted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "common/base/status.h"

namespace pinfeed {

// Runs `work(thread, done, stop)` on `threads` threads for `seconds`, then prints {"count", "seconds"} as
// JSON. The work adds to `done` what it finished and returns soon after `stop`. The first failure of a thread
// is returned instead.
template <typename Work>
Status CountFor(double seconds, unsigned threads, const Work& work) {
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> done = 0;
  std::vector<Status> results(threads);
  std::vector<std::thread> running;
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned t = 0; t < threads; ++t) {
    running.emplace_back([&, t] { results[t] = work(t, done, stop); });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const uint64_t count = done.load();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  stop = true;
  for (std::thread& thread : running) thread.join();
  for (const Status& result : results) RETURN_IF_ERROR(result);
  std::printf("{\"count\": %llu, \"seconds\": %.6f}\n", static_cast<unsigned long long>(count),
              elapsed.count());
  return OkStatus();
}

}  // namespace pinfeed
