// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/dataset_opener.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <new>
#include <utility>

#include "common/base/quote.h"
#include "common/os/freed_memory.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

// A user can have at most eight threads, and one of the last eight (CallQueue). So three users whose storage
// hangs leave threads to the others.
constexpr CallQueue::Bounds kQueueBounds{.threads = 32, .running_a_user = 8, .waiting_a_user = 512};
// How often cancelled calls are looked for.
constexpr std::chrono::milliseconds kCheckInterval(250);
// After an open that succeeded within this time, the freed memory is not worth a millisecond for its return.
constexpr std::chrono::milliseconds kShortOpen(50);

// What this thread is opening; null if nothing. Close reads it.
thread_local const DatasetSpec* place_of_this_thread = nullptr;

std::string NameOf(const DatasetSpec& spec) {
  if (spec.name.empty()) return "dataset " + QuotePath(spec.path);
  const std::string where = spec.path.empty() ? "" : " (" + QuotePath(spec.path) + ")";
  return "the dataset named " + QuotePath(spec.name) + where;
}

Status Stopping(const DatasetSpec& spec) {
  return Unavailable("open " + NameOf(spec) + ": the daemon is stopping");
}

template <typename List, typename Predicate>
void MoveIf(List& from, List& to, Predicate predicate) {
  for (auto one = from.begin(); one != from.end();) {
    const auto next = std::next(one);
    if (predicate(*one)) to.splice(to.end(), from, one);
    one = next;
  }
}

std::string SecondsText(std::chrono::steady_clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

DatasetOpener::DatasetOpener(OpenFunction open, PathFunction path_of)
    : open_(std::move(open)), path_of_(std::move(path_of)), queue_(kQueueBounds, kThreadName) {
  watcher_ = StartThread("dataset-watch", [this] { WatchLimits(); });
}

DatasetOpener::~DatasetOpener() {
  Stop();
}

void DatasetOpener::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (watcher_.joinable()) watcher_.join();
}

DatasetSpec DatasetOpener::PlaceOf(const DatasetSpec& spec) const {
  DatasetSpec place;
  place.name = spec.name;
  const std::string written = spec.path.empty() && !spec.name.empty() ? path_of_(spec.name) : spec.path;
  const std::filesystem::path path = std::filesystem::path(written).lexically_normal();
  place.path = path.has_filename() ? path.string() : path.parent_path().string();  // "/a/" is "/a"
  return place;
}

DatasetOpener::PlaceStates::iterator DatasetOpener::Find(const DatasetSpec& place) {
  return std::ranges::find_if(places_, [&](const PlaceState& state) { return state.place == place; });
}

DatasetOpener::PlaceStates::iterator DatasetOpener::FindOrAdd(const DatasetSpec& place) {
  const auto state = Find(place);
  if (state != places_.end()) return state;
  places_.emplace_back().place = place;
  return std::prev(places_.end());
}

void DatasetOpener::EraseIfIdle(PlaceStates::iterator state) {
  const bool wanted = !state->waiting.empty() || !state->closing.empty() || !state->queued.empty();
  if (!state->running && !wanted) places_.erase(state);
}

void DatasetOpener::Open(uid_t user, const DatasetSpec& spec, CallLimits limits, Answer answer) {
  const DatasetSpec place = PlaceOf(spec);
  Waiters waiter;
  waiter.push_back({user, spec, Clock::now(), std::move(limits), std::move(answer)});
  bool submit = false;
  {
    const MutexLock lock(mutex_);
    if (!stopping_) {
      const auto state = FindOrAdd(place);
      state->waiting.splice(state->waiting.end(), waiter);
      // A running open began before this call and may have seen older files, so another one follows it.
      submit = !state->running && state->queued.insert(user).second;
    }
  }
  if (!waiter.empty()) return waiter.front().answer(Stopping(spec));
  changed_.NotifyAll();
  if (submit) Submit(user, place);
}

void DatasetOpener::Close(uid_t user, const DatasetSpec& spec, std::shared_ptr<const Dataset> dataset) {
  const DatasetSpec place = PlaceOf(spec);
  // An earlier version of what is opened here: its memory is needed now.
  if (place_of_this_thread != nullptr && *place_of_this_thread == place) {
    dataset.reset();
    ReturnFreedMemory();
    return;
  }
  {
    const MutexLock lock(mutex_);
    const auto state = FindOrAdd(place);
    state->closing.push_back({user, std::move(dataset)});
    if (state->running || !state->queued.insert(user).second) return;
  }
  Submit(user, place);
}

void DatasetOpener::Submit(uid_t user, const DatasetSpec& place) {
  const auto run = [this, user, place] { Run(user, place); };
  // There are no more lists to wait for than there are named datasets.
  if (queue_.Submit(user, run, /*anyway=*/user == kListAccount)) return;
  bool closes = false;
  for (const Waiter& waiter : TakeRefused(user, place, closes)) {
    waiter.answer(ResourceExhausted("open " + NameOf(waiter.spec) + ": " +
                                    std::to_string(kQueueBounds.waiting_a_user) +
                                    " calls of this user already wait for datasets; try again later"));
  }
  // Closing is never refused. Once the queue is finished, this thread closes.
  if (closes && !queue_.Submit(user, run, /*anyway=*/true)) run();
}

DatasetOpener::Waiters DatasetOpener::TakeRefused(uid_t user, const DatasetSpec& place, bool& closes) {
  const auto of_user = [user](const auto& one) { return one.user == user; };
  Waiters refused;
  const MutexLock lock(mutex_);
  const auto state = Find(place);
  if (state == places_.end()) return refused;
  MoveIf(state->waiting, refused, of_user);
  closes = std::ranges::any_of(state->closing, of_user);
  if (!closes) state->queued.erase(user);
  EraseIfIdle(state);
  return refused;
}

DatasetOpener::Opened DatasetOpener::CallOpen(uid_t user, const DatasetSpec& spec) const {
  try {
    return open_(user, spec);
  } catch (const std::bad_alloc&) {
    // The dataset determines the size of its index. If it does not fit, only this open fails.
    return ResourceExhausted("open " + NameOf(spec) +
                             ": no memory for its index (std::bad_alloc); give the daemon more memory");
  }
}

std::optional<DatasetOpener::Task> DatasetOpener::BeginTask(uid_t user, const DatasetSpec& place) {
  const MutexLock lock(mutex_);
  const auto state = Find(place);
  if (state == places_.end()) return std::nullopt;
  state->queued.erase(user);
  if (state->running) return std::nullopt;  // another user's task came first; EndTask queues this one again
  Task task;
  MoveIf(state->closing, task.closing, [user](const PendingClose& one) { return one.user == user; });
  if (task.closing.empty()) {
    const auto own =
        std::ranges::find_if(state->waiting, [user](const Waiter& waiter) { return waiter.user == user; });
    // Served by another user's task, or no longer waiting; others have tasks of their own.
    if (own == state->waiting.end()) {
      EraseIfIdle(state);
      return std::nullopt;
    }
    task.spec = own->spec;
    MoveIf(state->waiting, state->served, [&](const Waiter& waiter) { return waiter.spec == task.spec; });
  }
  state->running = {user, (task.closing.empty() ? "opening " : "closing ") + NameOf(place), Clock::now()};
  return task;
}

DatasetOpener::Waiters DatasetOpener::EndTask(const DatasetSpec& place) {
  Waiters served;
  std::set<uid_t> requeued;
  {
    const MutexLock lock(mutex_);
    const auto state = Find(place);
    state->running.reset();
    served.swap(state->served);
    const auto requeue = [&](uid_t user) {
      if (state->queued.insert(user).second) requeued.insert(user);
    };
    for (const Waiter& waiter : state->waiting) requeue(waiter.user);
    for (const PendingClose& pending : state->closing) requeue(pending.user);
    EraseIfIdle(state);
  }
  for (const uid_t next : requeued) Submit(next, place);
  return served;
}

void DatasetOpener::Run(uid_t user, const DatasetSpec& place) {
  std::optional<Task> task = BeginTask(user, place);
  if (!task) return;
  if (!task->closing.empty()) {
    task->closing.clear();
    ReturnFreedMemory();  // the next task may need it
    EndTask(place);
    return;
  }
  const auto began = Clock::now();
  place_of_this_thread = &place;
  const Opened opened = CallOpen(user, task->spec);
  place_of_this_thread = nullptr;
  const bool was_short = Clock::now() - began <= kShortOpen;
  if (!opened.ok()) ReturnFreedMemory();  // another open may need it
  for (const Waiter& waiter : EndTask(place)) waiter.answer(opened);
  if (opened.ok() && !was_short) ReturnFreedMemory();
}

std::vector<DatasetOpener::Operation> DatasetOpener::RunningOperations() const {
  std::vector<Operation> all;
  const MutexLock lock(mutex_);
  for (const PlaceState& state : places_)
    if (state.running) all.push_back(*state.running);
  return all;
}

std::optional<DatasetOpener::Clock::time_point> DatasetOpener::NextCheck() const {
  std::optional<Clock::time_point> next;
  for (const PlaceState& state : places_) {
    for (const Waiters* waiters : {&state.served, &state.waiting}) {
      for (const Waiter& waiter : *waiters)
        next = std::min(next.value_or(waiter.limits.deadline), waiter.limits.deadline);
    }
  }
  if (next) next = std::min(*next, Clock::now() + kCheckInterval);
  return next;
}

Status DatasetOpener::TimeoutStatus(const PlaceState& state, const Waiter& waiter,
                                    Clock::time_point now) const {
  const std::string what =
      "open " + NameOf(waiter.spec) + ": not done after " + SecondsText(now - waiter.since);
  if (state.running) {
    return {
        Code::kDeadlineExceeded,
        what + "; its storage has been asked for " + SecondsText(now - state.running->since) +
            " and has not answered. Check whether its mount hangs, or that of index_dir (`ls` them on the "
            "daemon's host). A large "
            "folder or table also takes long when it is read for the first time, and a table that was "
            "written to just now up to 2 s: then try again, or wait longer (open_timeout)"};
  }
  size_t others = 0;
  const Operation* longest = nullptr;
  for (const PlaceState& other : places_) {
    if (!other.running || other.running->user != waiter.user) continue;
    ++others;
    if (longest == nullptr || other.running->since < longest->since) longest = &*other.running;
  }
  if (longest == nullptr) {
    return {Code::kDeadlineExceeded,
            what + "; datasets of other users that do not finish occupy all threads that open datasets"};
  }
  return {Code::kDeadlineExceeded,
          what + "; " + std::to_string(others) +
              " threads are busy with other datasets of this user; the longest, for " +
              SecondsText(now - longest->since) + ", is " + longest->what +
              ". Check whether their mounts hang (`ls` them on the daemon's host)"};
}

void DatasetOpener::TakeExpired(const PlaceState& state, Waiters& from,
                                std::vector<std::pair<Answer, Status>>& out) {
  const Clock::time_point now = Clock::now();
  for (auto waiter = from.begin(); waiter != from.end();) {
    std::optional<Status> end;
    if (stopping_) {
      end = Stopping(waiter->spec);
    } else if (waiter->limits.cancelled != nullptr && *waiter->limits.cancelled) {
      end = Status(Code::kCancelled, "open " + NameOf(waiter->spec) + ": the client cancelled the call");
    } else if (waiter->limits.deadline <= now) {
      end = TimeoutStatus(state, *waiter, now);
    }
    if (end) {
      out.emplace_back(std::move(waiter->answer), *std::move(end));
      waiter = from.erase(waiter);
    } else {
      ++waiter;
    }
  }
}

void DatasetOpener::WatchLimits() {
  bool stopping = false;
  while (!stopping) {
    std::vector<std::pair<Answer, Status>> ended;
    {
      const MutexLock lock(mutex_);
      if (const auto next = NextCheck(); !stopping_ && next) {
        changed_.WaitUntil(mutex_, *next);
      } else if (!stopping_) {
        changed_.Wait(mutex_);
      }
      stopping = stopping_;
      for (PlaceState& state : places_) {
        TakeExpired(state, state.served, ended);
        TakeExpired(state, state.waiting, ended);
      }
    }
    for (const auto& [answer, error] : ended) answer(error);
  }
}

}  // namespace pinfeed
