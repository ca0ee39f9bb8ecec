// SPDX-License-Identifier: Apache-2.0
#include "server/stop_limit.h"

#include <pthread.h>

#include <cstdlib>
#include <system_error>

#include "common/log.h"

namespace pinfeed {

StopLimit::StopLimit(std::chrono::seconds limit) : limit_(limit) {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    spdlog::warn("no thread to bound the end by {} s: {}", limit_.count(), error.what());
    return;
  }
  ::pthread_setname_np(thread_.native_handle(), "stop-limit");
}

StopLimit::~StopLimit() {
  {
    const MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void StopLimit::Run() {
  const auto deadline = std::chrono::steady_clock::now() + limit_;
  {
    const MutexLock lock(mutex_);
    while (!over_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (over_) return;
  }
  spdlog::error("a GPU or a disk has not answered for {} s: the daemon ends without having stopped",
                limit_.count());
  std::_Exit(EXIT_FAILURE);
}

}  // namespace pinfeed
