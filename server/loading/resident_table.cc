// SPDX-License-Identifier: Apache-2.0
#include "server/loading/resident_table.h"

#include <algorithm>
#include <utility>

#include "common/base/byte_size.h"
#include "common/base/quote.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

// Nothing reports that a user has left or that a loading has ended, so the thread polls.
constexpr std::chrono::milliseconds kLook(500);
constexpr std::chrono::milliseconds kLookSoon(2);  // while a call waits for memory, or at the end

}  // namespace

ResidentTable::~ResidentTable() {
  Stop();
}

void ResidentTable::Start() {
  thread_ = StartThread("resident", [this] { Run(); });
}

void ResidentTable::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

std::vector<ResidentTable::Entry>::iterator ResidentTable::Find(const Key& key) {
  return std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.key == key; });
}

Result<std::shared_ptr<ResidentData>> ResidentTable::Acquire(const Key& key, const Make& make) {
  {
    const MutexLock lock(mutex_);
    while (true) {
      const auto found = Find(key);
      if (found == entries_.end()) break;
      if (found->data == nullptr) {
        changed_.Wait(mutex_);
        continue;
      }
      if (!found->data->failed() && !found->stopped) return found->Use();
      found->key = Key();  // its users keep it to their end, then the thread frees it
      break;
    }
    entries_.push_back({key, nullptr});
  }
  Result<std::shared_ptr<ResidentData>> made = make();
  {
    const MutexLock lock(mutex_);
    const auto own = Find(key);
    if (made.ok()) {
      own->data = *std::move(made);
      made = own->Use();
    } else {
      entries_.erase(own);
    }
  }
  changed_.NotifyAll();
  if (made.ok()) (*made)->Begin();
  return made;
}

std::shared_ptr<ResidentData> ResidentTable::Entry::Use() {
  idle_since.reset();
  if (std::shared_ptr<ResidentData> used = users.lock()) return used;
  std::shared_ptr<ResidentData> used(std::make_shared<std::shared_ptr<ResidentData>>(data), data.get());
  users = used;
  return used;
}

void ResidentTable::FreeIdle(const std::string& gpu_uuid, std::optional<uid_t> owner,
                             Clock::time_point deadline) {
  const MutexLock lock(mutex_);
  const auto demand = demands_.insert(demands_.end(), {gpu_uuid, owner});
  changed_.NotifyAll();
  while ((HasIdle(*demand) || current_) && Clock::now() < deadline) changed_.WaitUntil(mutex_, deadline);
  demands_.erase(demand);
}

std::optional<OngoingOperation> ResidentTable::CurrentOperation() const {
  const MutexLock lock(mutex_);
  return current_;
}

bool ResidentTable::HasIdle(const Demand& demand) const {
  return std::ranges::any_of(entries_,
                             [&](const Entry& entry) { return entry.IsIdle() && entry.Serves(demand); });
}

bool ResidentTable::IsDemanded(const Entry& entry) const {
  return std::ranges::any_of(demands_, [&](const Demand& demand) { return entry.Serves(demand); });
}

std::chrono::nanoseconds ResidentTable::Pause() const {
  const bool soon = stopping_ || !demands_.empty();
  return soon ? kLookSoon : kLook;
}

std::shared_ptr<ResidentData> ResidentTable::TakeUnused() {
  const Clock::time_point now = Clock::now();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!entry->IsIdle()) continue;
    if (!entry->idle_since) entry->idle_since = now;
    if (!stopping_ && !IsDemanded(*entry) && now - *entry->idle_since < keep_) continue;
    entry->stopped = true;
    entry->data->Stop();
    // A thread that loads them, or has just done so, is an owner, too.
    if (!entry->data->AtRest() || entry->data.use_count() > 1) continue;
    std::shared_ptr<ResidentData> data = std::move(entry->data);
    entries_.erase(entry);
    return data;
  }
  return nullptr;
}

void ResidentTable::Run() {
  while (true) {
    std::shared_ptr<ResidentData> unused;
    {
      const MutexLock lock(mutex_);
      while ((unused = TakeUnused()) == nullptr) {
        if (stopping_ && entries_.empty()) return;
        if (entries_.empty())
          changed_.Wait(mutex_);
        else
          changed_.WaitUntil(mutex_, Clock::now() + Pause());
      }
      current_ =
          OngoingOperation{"resident",
                           "freeing " + ByteSize(unused->arena().mapped_bytes()) + " of resident samples (" +
                               QuotePath(unused->parts().dataset->info().path) + ")",
                           Clock::now()};
    }
    Free(std::move(unused));
    {
      const MutexLock lock(mutex_);
      current_.reset();
    }
    changed_.NotifyAll();
  }
}

void ResidentTable::Free(std::shared_ptr<ResidentData> data) {
  const std::shared_ptr<FeedShare> share = data->share();
  data.reset();
  share->AwaitUsers();
}

}  // namespace pinfeed
