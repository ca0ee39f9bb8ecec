// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/dataset_opener.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <new>
#include <utility>

#include "common/base/quote.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

// Of these a user has at most eight, so that eight places that hang are all that one can have; and of the
// last eight one, so that three users like that leave threads to the others.
constexpr CallQueue::Bounds kDisk{.threads = 32, .running_a_user = 8, .waiting_a_user = 512};
// How soon a client that went away is noticed.
constexpr std::chrono::milliseconds kLook(250);

std::string NameOf(const DatasetSpec& spec) {
  if (spec.name.empty()) return "dataset " + QuotePath(spec.path);
  const std::string where = spec.path.empty() ? "" : " (" + QuotePath(spec.path) + ")";
  return "the dataset named " + QuotePath(spec.name) + where;
}

Status Stopping(const DatasetSpec& spec) {
  return Unavailable("open " + NameOf(spec) + ": the daemon stops");
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
    : open_(std::move(open)), path_of_(std::move(path_of)), disk_(kDisk, kThreadName) {
  watch_ = StartThread("dataset-watch", [this] { Watch(); });
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
  if (watch_.joinable()) watch_.join();
}

DatasetSpec DatasetOpener::PlaceOf(const DatasetSpec& spec) const {
  DatasetSpec place;
  place.name = spec.name;
  const std::string written = spec.path.empty() && !spec.name.empty() ? path_of_(spec.name) : spec.path;
  const std::filesystem::path path = std::filesystem::path(written).lexically_normal();
  place.path = path.has_filename() ? path.string() : path.parent_path().string();  // "/a/" is "/a"
  return place;
}

DatasetOpener::Works::iterator DatasetOpener::Find(const DatasetSpec& place) {
  return std::find_if(works_.begin(), works_.end(), [&](const Work& work) { return work.place == place; });
}

DatasetOpener::Works::iterator DatasetOpener::FindOrAdd(const DatasetSpec& place) {
  const auto work = Find(place);
  if (work != works_.end()) return work;
  works_.emplace_back().place = place;
  return std::prev(works_.end());
}

void DatasetOpener::EraseIfIdle(Works::iterator work) {
  const bool wanted = !work->waiting.empty() || !work->closing.empty() || !work->queued.empty();
  if (!work->running && !wanted) works_.erase(work);
}

void DatasetOpener::Open(uid_t user, const DatasetSpec& spec, Patience patience, Answer answer) {
  const DatasetSpec place = PlaceOf(spec);
  Waiters waiter;
  waiter.push_back({user, spec, Clock::now(), std::move(patience), std::move(answer)});
  bool submit = false;
  {
    const MutexLock lock(mutex_);
    if (!stopping_) {
      const auto work = FindOrAdd(place);
      work->waiting.splice(work->waiting.end(), waiter);
      // What runs began before this call came, so it may have seen older files: another run follows it.
      submit = !work->running && work->queued.insert(user).second;
    }
  }
  if (!waiter.empty()) return waiter.front().answer(Stopping(spec));
  changed_.NotifyAll();
  if (submit) Submit(user, place);
}

void DatasetOpener::Close(uid_t user, const DatasetSpec& spec, std::shared_ptr<const Dataset> dataset) {
  const DatasetSpec place = PlaceOf(spec);
  {
    const MutexLock lock(mutex_);
    const auto work = FindOrAdd(place);
    work->closing.push_back({user, std::move(dataset)});
    if (work->running || !work->queued.insert(user).second) return;
  }
  Submit(user, place);
}

void DatasetOpener::Submit(uid_t user, const DatasetSpec& place) {
  const auto run = [this, user, place] { Run(user, place); };
  if (disk_.Submit(user, run)) return;
  bool closes = false;
  for (const Waiter& waiter : TakeRefused(user, place, closes)) {
    waiter.answer(ResourceExhausted("open " + NameOf(waiter.spec) + ": " +
                                    std::to_string(kDisk.waiting_a_user) +
                                    " datasets of this user wait already to be opened; try again later"));
  }
  // What is to be closed takes its turn, however many wait; after the end, here and now.
  if (closes && !disk_.SubmitAnyway(user, run)) run();
}

DatasetOpener::Waiters DatasetOpener::TakeRefused(uid_t user, const DatasetSpec& place, bool& closes) {
  const auto of_user = [user](const auto& one) { return one.user == user; };
  Waiters refused;
  const MutexLock lock(mutex_);
  const auto work = Find(place);
  if (work == works_.end()) return refused;
  MoveIf(work->waiting, refused, of_user);
  closes = std::any_of(work->closing.begin(), work->closing.end(), of_user);
  if (!closes) work->queued.erase(user);
  EraseIfIdle(work);
  return refused;
}

DatasetOpener::Opened DatasetOpener::Ask(uid_t user, const DatasetSpec& spec) const {
  try {
    return open_(user, spec);
  } catch (const std::bad_alloc&) {
    // How much the list of its samples takes is its folder's word: for want of that much, one open fails.
    return ResourceExhausted(
        "open " + NameOf(spec) +
        ": no memory for the list of its samples (std::bad_alloc); give the daemon more");
  }
}

std::optional<DatasetOpener::Turn> DatasetOpener::Begin(uid_t user, const DatasetSpec& place) {
  const MutexLock lock(mutex_);
  const auto work = Find(place);
  if (work == works_.end()) return std::nullopt;
  work->queued.erase(user);
  if (work->running) return std::nullopt;  // another user's turn came first; its end lets this one run
  Turn turn;
  MoveIf(work->closing, turn.closing, [user](const Unwanted& one) { return one.user == user; });
  if (turn.closing.empty()) {
    const auto own = std::find_if(work->waiting.begin(), work->waiting.end(),
                                  [user](const Waiter& waiter) { return waiter.user == user; });
    if (own == work->waiting.end()) {  // served by another's turn, or gone; who else waits has turns as well
      EraseIfIdle(work);
      return std::nullopt;
    }
    turn.spec = own->spec;
    MoveIf(work->waiting, work->served, [&](const Waiter& waiter) { return waiter.spec == turn.spec; });
  }
  work->running = {user, (turn.closing.empty() ? "opening " : "closing ") + NameOf(place), Clock::now()};
  return turn;
}

DatasetOpener::Waiters DatasetOpener::End(const DatasetSpec& place) {
  Waiters served;
  std::set<uid_t> again;
  {
    const MutexLock lock(mutex_);
    const auto work = Find(place);
    work->running.reset();
    served.swap(work->served);
    const auto let_run = [&](uid_t user) {
      if (work->queued.insert(user).second) again.insert(user);
    };
    for (const Waiter& waiter : work->waiting) let_run(waiter.user);
    for (const Unwanted& unwanted : work->closing) let_run(unwanted.user);
    EraseIfIdle(work);
  }
  for (const uid_t next : again) Submit(next, place);
  return served;
}

void DatasetOpener::Run(uid_t user, const DatasetSpec& place) {
  std::optional<Turn> turn = Begin(user, place);
  if (!turn) return;
  if (!turn->closing.empty()) {
    turn->closing.clear();
    End(place);
    return;
  }
  const Opened opened = Ask(user, turn->spec);
  for (const Waiter& waiter : End(place)) waiter.answer(opened);
}

std::vector<DatasetOpener::UnderWay> DatasetOpener::under_way() const {
  std::vector<UnderWay> all;
  const MutexLock lock(mutex_);
  for (const Work& work : works_)
    if (work.running) all.push_back(*work.running);
  return all;
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
  const std::string what =
      "open " + NameOf(waiter.spec) + ": not done after " + SecondsText(now - waiter.since);
  if (work.running) {
    return {
        Code::kDeadlineExceeded,
        what + "; its storage has been asked for " + SecondsText(now - work.running->since) +
            " and has not given an answer. See whether its mount hangs (`ls` it on the daemon's host); a "
            "large folder that is read for the first time takes long, too: then try again, or wait longer "
            "(open_timeout)"};
  }
  size_t others = 0;
  const UnderWay* longest = nullptr;
  for (const Work& other : works_) {
    if (!other.running || other.running->user != waiter.user) continue;
    ++others;
    if (longest == nullptr || other.running->since < longest->since) longest = &*other.running;
  }
  if (longest == nullptr) {
    return {Code::kDeadlineExceeded,
            what + "; the threads that open datasets are all at those of other users, which do not get done"};
  }
  return {Code::kDeadlineExceeded, what + "; " + std::to_string(others) +
                                       " threads are at other datasets of this user, for the longest time, " +
                                       SecondsText(now - longest->since) + ", " + longest->what +
                                       ". See whether their mounts hang (`ls` them on the daemon's host)"};
}

void DatasetOpener::TakeImpatient(const Work& work, Waiters& from,
                                  std::vector<std::pair<Answer, Status>>& out) {
  const Clock::time_point now = Clock::now();
  for (auto waiter = from.begin(); waiter != from.end();) {
    std::optional<Status> end;
    if (stopping_) {
      end = Stopping(waiter->spec);
    } else if (waiter->patience.gone != nullptr && *waiter->patience.gone) {
      end = Status(Code::kCancelled, "open " + NameOf(waiter->spec) + ": the client went away");
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
