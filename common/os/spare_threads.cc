// SPDX-License-Identifier: Apache-2.0
#include "common/os/spare_threads.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "common/os/start_thread.h"

namespace pinfeed {

Status CheckSpareThreads(std::string_view what) {
  constexpr size_t kFixed = 8;  // timers, executors, this project's
  // And the pool of gRPC 1.51.
  const size_t count = kFixed + static_cast<size_t>(std::clamp(::sysconf(_SC_NPROCESSORS_CONF), 2L, 32L));
  std::latch tried(1);
  std::vector<std::thread> threads;
  std::string fault;
  threads.reserve(count);
  try {
    while (threads.size() < count) threads.push_back(StartThread("pf-spare", [&tried] { tried.wait(); }));
  } catch (const std::exception& error) {  // std::bad_alloc, too: those that were started wait
    fault = error.what();
  }
  tried.count_down();
  for (std::thread& thread : threads) thread.join();
  if (fault.empty()) return OkStatus();
  return ResourceExhausted(std::string(what) + ": of the " + std::to_string(count) +
                           " threads that this may take, this process cannot start more than " +
                           std::to_string(threads.size()) + " (" + fault +
                           "); raise the limit of processes (ulimit -u, pids.max of the container) or of "
                           "address space (ulimit -v), or use fewer threads");
}

}  // namespace pinfeed
