// SPDX-License-Identifier: Apache-2.0
#include "client/src/link/spare_threads.h"

#include <grpc/support/cpu.h>

#include <algorithm>
#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "common/os/start_thread.h"

namespace pinfeed {

Status CheckSpareThreads() {
  constexpr unsigned kFixed = 8;  // timers, executors, this library's
  const unsigned count = kFixed + std::clamp(gpr_cpu_num_cores(), 2U, 32U);  // and the pool of gRPC 1.51
  std::latch tried(1);
  std::vector<std::thread> threads;
  std::string fault;
  try {
    while (threads.size() < count) threads.push_back(StartThread("pf-spare", [&tried] { tried.wait(); }));
  } catch (const std::system_error& error) {
    fault = error.what();
  }
  tried.count_down();
  for (std::thread& thread : threads) thread.join();
  if (fault.empty()) return OkStatus();
  return ResourceExhausted("call pinfeedd: of the " + std::to_string(count) +
                           " threads that a call may take, this process cannot start more than " +
                           std::to_string(threads.size()) + " (" + fault +
                           "); raise the limit of processes (ulimit -u, pids.max of the container) or of "
                           "address space (ulimit -v), or use fewer threads");
}

}  // namespace pinfeed
