// SPDX-License-Identifier: Apache-2.0
#include "client/copies/helper_threads.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "common/os/blocked_signals.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

// Longer than a helper usually takes for what it is at when the caller has finished. Sleeping takes longer.
constexpr std::chrono::microseconds kSpin(100);

}  // namespace

HelperThreads::~HelperThreads() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    threads.swap(threads_);
  }
  wanted_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

uint32_t HelperThreads::Start(uint32_t helpers) {
  const MutexLock lock(mutex_);
  const BlockedSignals blocked;
  try {
    while (threads_.size() < helpers) threads_.push_back(StartThread("pf-copy", [this] { Help(); }));
  } catch (const std::system_error&) {
    // Fewer take longer, and the next call tries again.
  }
  return std::min(helpers, static_cast<uint32_t>(threads_.size()));
}

void HelperThreads::Run(uint32_t helpers, const std::function<void()>& body) {
  helpers = Start(std::min(helpers, count_));
  if (helpers == 0) return body();
  Job job{body, helpers};
  {
    const MutexLock lock(mutex_);
    jobs_.push_back(&job);
  }
  WakeTwo(helpers);
  body();
  {
    const MutexLock lock(mutex_);
    const auto place = std::find(jobs_.begin(), jobs_.end(), &job);
    if (place != jobs_.end()) jobs_.erase(place);
  }
  const auto until = std::chrono::steady_clock::now() + kSpin;
  while (job.running.load(std::memory_order_acquire) != 0 && std::chrono::steady_clock::now() < until) {
  }
  // Under the mutex in any case: the last helper stops using the job before it unlocks.
  const MutexLock lock(mutex_);
  while (job.running.load(std::memory_order_relaxed) != 0) finished_.Wait(mutex_);
}

// Each thread wakes two others, if so many are wanted: for one to wake all would take it too long.
void HelperThreads::WakeTwo(uint32_t wanted) {
  for (uint32_t i = 0; i < std::min<uint32_t>(wanted, 2); ++i) wanted_.NotifyOne();
}

void HelperThreads::Help() {
  mutex_.Lock();
  while (true) {
    while (jobs_.empty() && !ending_) wanted_.Wait(mutex_);
    if (ending_) break;
    Job& job = *jobs_.front();
    const uint32_t wanted = --job.wanted;
    if (wanted == 0) jobs_.pop_front();
    job.running.fetch_add(1, std::memory_order_relaxed);
    mutex_.Unlock();
    WakeTwo(wanted);
    job.body();
    mutex_.Lock();
    if (job.running.fetch_sub(1, std::memory_order_release) == 1) finished_.NotifyAll();
  }
  mutex_.Unlock();
}

}  // namespace pinfeed
