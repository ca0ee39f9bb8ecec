// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/dataset_opener.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "common/quote.h"

namespace pinfeed {
namespace {

// Of these a user has at most eight, so that eight datasets that hang are all that one can have; and of the
// last eight one, so that three users like that leave threads to the others.
constexpr CallQueue::Bounds kDisk{.threads = 32, .running_a_user = 8, .waiting_a_user = 512};
// How soon a client that went away is noticed.
constexpr std::chrono::milliseconds kLook(250);

std::string NameOf(const DatasetSpec& spec) {
  return spec.name.empty() ? "dataset " + QuotePath(spec.path) : "the dataset named " + QuotePath(spec.name);
}

std::string Seconds(std::chrono::steady_clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

DatasetOpener::DatasetOpener(OpenFunction open) : open_(std::move(open)), disk_(kDisk, "dataset") {
  watch_ = std::thread([this] { Watch(); });
  ::pthread_setname_np(watch_.native_handle(), "dataset-watch");
}

DatasetOpener::~DatasetOpener() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  watch_.join();
}

DatasetOpener::Works::iterator DatasetOpener::Find(const DatasetSpec& spec) {
  return std::find_if(works_.begin(), works_.end(), [&](const Work& work) { return work.spec == spec; });
}

void DatasetOpener::Open(uid_t user, const DatasetSpec& spec, Patience patience, Answer answer) {
  bool submit = false;
  {
    const MutexLock lock(mutex_);
    auto work = Find(spec);
    if (work == works_.end()) {
      works_.emplace_back().spec = spec;
      work = std::prev(works_.end());
    }
    work->waiting.push_back({user, Clock::now(), std::move(patience), std::move(answer)});
    // What runs began before this call came, so it may have seen older files: another run follows it.
    submit = work->submitted.insert(user).second && !work->running;
  }
  changed_.NotifyAll();
  if (submit) Submit(user, spec);
}

void DatasetOpener::Submit(uid_t user, const DatasetSpec& spec) {
  if (disk_.Submit(user, [this, user, spec] { Run(user, spec); })) return;
  Waiters refused;
  {
    const MutexLock lock(mutex_);
    const auto work = Find(spec);
    if (work == works_.end()) return;
    work->submitted.erase(user);
    for (auto waiter = work->waiting.begin(); waiter != work->waiting.end();) {
      const auto next = std::next(waiter);
      if (waiter->user == user) refused.splice(refused.end(), work->waiting, waiter);
      waiter = next;
    }
    if (work->submitted.empty() && !work->running) works_.erase(work);
  }
  for (const Waiter& waiter : refused) {
    waiter.answer(ResourceExhausted("open " + NameOf(spec) + ": " + std::to_string(kDisk.waiting_a_user) +
                                    " datasets of this user wait already to be opened; try again later"));
  }
}

DatasetOpener::Opened DatasetOpener::Ask(const DatasetSpec& spec) const {
  try {
    return open_(spec);
  } catch (const std::bad_alloc&) {
    // How much the list of its samples takes is its folder's word: for want of that much, one open fails.
    return ResourceExhausted(
        "open " + NameOf(spec) +
        ": no memory for the list of its samples (std::bad_alloc); give the daemon more");
  }
}

void DatasetOpener::Run(uid_t user, const DatasetSpec& spec) {
  {
    const MutexLock lock(mutex_);
    const auto work = Find(spec);
    if (work == works_.end() || work->running) return;  // another user's turn came first
    if (work->waiting.empty()) {                        // all went away
      works_.erase(work);
      return;
    }
    work->running = Clock::now();
    work->runner = user;
    work->served = std::exchange(work->waiting, {});
    work->submitted.clear();
  }
  const Opened opened = Ask(spec);
  Waiters served;
  std::set<uid_t> again;
  {
    const MutexLock lock(mutex_);
    const auto work = Find(spec);
    work->running.reset();
    served = std::exchange(work->served, {});
    if (work->waiting.empty()) {
      works_.erase(work);
    } else {
      again = work->submitted;
    }
  }
  for (const uid_t next : again) Submit(next, spec);
  for (const Waiter& waiter : served) waiter.answer(opened);
}

std::optional<DatasetOpener::Clock::time_point> DatasetOpener::NextLook() const {
  std::optional<Clock::time_point> next;
  for (const Work& work : works_) {
    for (const Waiters* waiters : {&work.served, &work.waiting}) {
      for (const Waiter& waiter : *waiters)
        next = std::min(next.value_or(waiter.patience.until), waiter.patience.until);
    }
  }
  if (next) next = std::min(*next, Clock::now() + kLook);
  return next;
}

Status DatasetOpener::TooLate(const Work& work, const Waiter& waiter, Clock::time_point now) const {
  const std::string what = "open " + NameOf(work.spec) + ": not done after " + Seconds(now - waiter.since);
  if (work.running) {
    return {
        Code::kDeadlineExceeded,
        what + "; its storage has been asked for " + Seconds(now - *work.running) +
            " and has not given an answer. See whether its mount hangs (`ls` it on the daemon's host); a "
            "large folder that is read for the first time takes long, too: then try again, or wait longer "
            "(open_timeout)"};
  }
  size_t others = 0;
  const Work* longest = nullptr;
  for (const Work& other : works_) {
    if (!other.running || other.runner != waiter.user) continue;
    ++others;
    if (longest == nullptr || *other.running < *longest->running) longest = &other;
  }
  if (longest == nullptr) {
    return {Code::kDeadlineExceeded,
            what + "; the threads that open datasets are all at those of other users, which do not get done"};
  }
  return {Code::kDeadlineExceeded,
          what + "; " + std::to_string(others) +
              " other datasets of this user are being opened, for the longest time, " +
              Seconds(now - *longest->running) + ", " + NameOf(longest->spec) +
              ". See whether their mounts hang (`ls` them on the daemon's host)"};
}

void DatasetOpener::TakeImpatient(const Work& work, Waiters& from,
                                  std::vector<std::pair<Answer, Status>>& out) {
  const Clock::time_point now = Clock::now();
  for (auto waiter = from.begin(); waiter != from.end();) {
    std::optional<Status> end;
    if (stopping_) {
      end = Unavailable("open " + NameOf(work.spec) + ": the daemon stops");
    } else if (waiter->patience.gone != nullptr && *waiter->patience.gone) {
      end = Status(Code::kCancelled, "open " + NameOf(work.spec) + ": the client went away");
    } else if (waiter->patience.until <= now) {
      end = TooLate(work, *waiter, now);
    }
    if (end) {
      out.emplace_back(std::move(waiter->answer), *std::move(end));
      waiter = from.erase(waiter);
    } else {
      ++waiter;
    }
  }
}

void DatasetOpener::Watch() {
  bool stopping = false;
  while (!stopping) {
    std::vector<std::pair<Answer, Status>> ended;
    {
      const MutexLock lock(mutex_);
      if (const auto next = NextLook(); !stopping_ && next) {
        changed_.WaitUntil(mutex_, *next);
      } else if (!stopping_) {
        changed_.Wait(mutex_);
      }
      stopping = stopping_;
      for (Work& work : works_) {
        TakeImpatient(work, work.served, ended);
        TakeImpatient(work, work.waiting, ended);
      }
    }
    for (const auto& [answer, error] : ended) answer(error);
  }
}

}  // namespace pinfeed
