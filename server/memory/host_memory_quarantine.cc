// SPDX-License-Identifier: Apache-2.0
#include "server/memory/host_memory_quarantine.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <utility>

#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kPollInterval(50);

}  // namespace

bool HasNoOtherUser(int fd) {
  if (::fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return errno != EAGAIN;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return true;
}

HostMemoryQuarantine::HostMemoryQuarantine(const std::string& thread) {
  ::signal(SIGIO, SIG_IGN);  // sent if a process opens the memory during the lease check
  thread_ = StartThread(thread, [this] { Run(); });
}

HostMemoryQuarantine::~HostMemoryQuarantine() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void HostMemoryQuarantine::Add(UniqueFd fd, BudgetLease lease, std::shared_ptr<void> until_free) {
  const MutexLock lock(mutex_);
  entries_.push_back({std::move(until_free), std::move(lease), std::move(fd)});
  changed_.NotifyAll();
}

uint64_t HostMemoryQuarantine::bytes() const {
  uint64_t bytes = 0;
  const MutexLock lock(mutex_);
  for (const Entry& entry : entries_) bytes += entry.lease.bytes();
  return bytes;
}

void HostMemoryQuarantine::AwaitNone(std::chrono::steady_clock::time_point deadline) {
  const MutexLock lock(mutex_);
  while ((!entries_.empty() || freeing_) && changed_.WaitUntil(mutex_, deadline)) {
  }
}

void HostMemoryQuarantine::Run() {
  while (true) {
    std::vector<Entry> gone;  // freed without the lock: freeing many pages takes a while
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && entries_.empty()) changed_.Wait(mutex_);
      if (stopping_) return;
      // Two system calls per entry, and entries are rare.
      const auto unused = std::partition(entries_.begin(), entries_.end(),
                                         [](const Entry& entry) { return !HasNoOtherUser(entry.fd.get()); });
      gone.assign(std::move_iterator(unused), std::move_iterator(entries_.end()));
      entries_.erase(unused, entries_.end());
      freeing_ = true;
    }
    gone.clear();
    const MutexLock lock(mutex_);
    freeing_ = false;
    changed_.NotifyAll();
    const auto next = std::chrono::steady_clock::now() + kPollInterval;
    while (!stopping_ && !entries_.empty() && changed_.WaitUntil(mutex_, next)) {
    }
  }
}

}  // namespace pinfeed
