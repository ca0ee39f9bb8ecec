// SPDX-License-Identifier: Apache-2.0
#include "server/loading/producer_group.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/log_pace.h"
#include "server/trace/tracer.h"

namespace pinfeed {
namespace {

constexpr uint32_t kProducerLinesASecond = 20;

std::string Describe(const BatchPlan& plan) {
  return "batch " + std::to_string(plan.batch_index) + " of epoch " + std::to_string(plan.epoch);
}

// For requests whose memory nobody has filled, or may still be filling.
Status NotFilled() {
  return {Code::kCancelled, "the batch is filled elsewhere, or not wanted any more"};
}

}  // namespace

ProducerGroup::~ProducerGroup() {
  PF_CHECK(waiting_.empty() && beyond_end_.empty(), "a feed is stopped before its producers are forgotten");
}

void ProducerGroup::Announce(const PieceRequest& request) {
  const MutexLock lock(mutex_);
  announced_.insert(NumberOf(request));
}

void ProducerGroup::Withdraw(const PieceRequest& request) {
  {
    const MutexLock lock(mutex_);
    announced_.erase(NumberOf(request));
  }
  Deal();
}

void ProducerGroup::Produce(std::shared_ptr<PieceRequest> request) {
  {
    const MutexLock lock(mutex_);
    announced_.erase(NumberOf(*request));
    if (!cancelled_) WaitLocked({std::exchange(request, nullptr)});
  }
  if (request != nullptr) request->Complete(NotFilled());
  Deal();
}

void ProducerGroup::Cancel() {
  std::vector<Task> tasks;
  {
    const MutexLock lock(mutex_);
    cancelled_ = true;
    std::ranges::move(waiting_, std::back_inserter(tasks));
    waiting_.clear();
    std::ranges::move(beyond_end_, std::back_inserter(tasks));
    beyond_end_.clear();
    for (auto& [id, producer] : producers_) {
      std::ranges::move(producer.tasks, std::back_inserter(tasks));
      producer.tasks.clear();
      producer.link->HangUp();
    }
  }
  for (const Task& task : tasks) task.request->Complete(NotFilled());
}

Status ProducerGroup::CheckRoomLocked(uint32_t lane) const {
  const std::string feed = "attach a producer: feed " + std::to_string(feed_);
  if (lane >= lanes_) {
    return InvalidArgument(feed + " has no lane " + std::to_string(lane) +
                           ": dataset.produced.lanes allows those below " + std::to_string(lanes_));
  }
  if (cancelled_) return Unavailable(feed + " has ended");
  if (producers_.size() >= kMaxProducers) {
    return ResourceExhausted(feed + " has " + std::to_string(producers_.size()) +
                             " producers, which is the limit; use fewer processes");
  }
  return OkStatus();
}

Status ProducerGroup::CheckRoom(uint32_t lane) const {
  const MutexLock lock(mutex_);
  return CheckRoomLocked(lane);
}

Result<ProducerGroup::ProducerId> ProducerGroup::Attach(std::shared_ptr<Link> link, pid_t pid,
                                                        uint32_t lane) {
  ProducerId id = 0;
  {
    const MutexLock lock(mutex_);
    RETURN_IF_ERROR(CheckRoomLocked(lane));
    id = next_producer_++;
    Producer& producer = producers_[id];
    producer.link = std::move(link);
    producer.pid = pid;
    producer.lane = lane;
  }
  Deal();
  return id;
}

Status ProducerGroup::OnDone(ProducerId id, uint64_t task_id, const Status& status) {
  Task task;
  const bool ends_data = status.code() == Code::kOutOfRange;
  bool waits_beyond_end = false;
  {
    const MutexLock lock(mutex_);
    if (cancelled_) return OkStatus();  // said before it saw the hang-up
    Producer& producer = producers_.at(id);
    const auto found = std::ranges::find(producer.tasks, task_id, &Task::id);
    if (found == producer.tasks.end())
      return InvalidArgument("lifeline: task " + std::to_string(task_id) + " is none of this producer's");
    task = std::move(*found);
    producer.tasks.erase(found);
    const uint64_t now = TraceClockNs();
    const uint64_t took = now - std::max(task.dealt_ns, producer.last_done_ns);
    producer.last_done_ns = now;
    counts_.worked_ns += took;
    if (!task.request->Replaced()) {
      waits_beyond_end = ends_data;
      if (ends_data)
        beyond_end_.push_back(task);
      else
        task_ns_ = (7 * task_ns_ + took) / 8;
    }
  }
  // Before others are dealt: if this one was late, another slot's request for its batch is dropped.
  if (status.ok()) {
    on_filled_(std::move(task.request));
  } else if (!ends_data) {
    task.request->Complete(Status(
        status.code(), "the producer of " + Describe(task.request->plan()) + " says: " + status.message()));
  } else if (!waits_beyond_end) {
    task.request->Complete(NotFilled());  // its slot is free again
  }
  {
    // Now: another thread that deals must not give it that other request either.
    const MutexLock lock(mutex_);
    const auto found = producers_.find(id);
    if (found != producers_.end() && found->second.tasks.empty()) found->second.late = false;
  }
  Deal();
  return OkStatus();
}

Result<UniqueFd> ProducerGroup::GrantMemory(ProducerId id, uint64_t task_id, uint64_t bytes,
                                            std::shared_ptr<const void> until_free) {
  const std::string what = "memory for task " + std::to_string(task_id) + ": ";
  {
    const MutexLock lock(mutex_);
    if (cancelled_) return Unavailable(what + "the feed has ended");
    std::deque<Task>& tasks = producers_.at(id).tasks;
    const auto found = std::ranges::find(tasks, task_id, &Task::id);
    if (found == tasks.end()) return InvalidArgument(what + "it is none of this producer's");
    if (bytes == 0) return InvalidArgument(what + "0 bytes");
    if (std::exchange(found->asked_memory, true)) return InvalidArgument(what + "it was asked for before");
  }
  if (one_off_ == nullptr)
    return FailedPrecondition("the feed is shared, and no trainer can map memory that is not the feed's");
  return one_off_->Grant(bytes, std::move(until_free));
}

void ProducerGroup::Dismiss(ProducerId id) {
  const MutexLock lock(mutex_);
  const auto found = producers_.find(id);
  if (found == producers_.end() || found->second.dismissed) return;
  found->second.dismissed = true;
  found->second.link->EndTasks();
}

void ProducerGroup::ReplaceLate(ProducerId id) {
  std::vector<std::shared_ptr<PieceRequest>> late;
  pid_t pid = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = producers_.find(id);
    if (found == producers_.end() || found->second.tasks.empty()) return;
    Producer& producer = found->second;
    const std::chrono::nanoseconds taken(TraceClockNs() - producer.BeganNs());
    if (taken <= task_timeout_ && !producer.hung_up) return;
    pid = producer.pid;
    producer.late = true;  // before Replace, which deals the batch to another one
    for (const Task& task : producer.tasks)
      if (!task.request->Replaced()) late.push_back(task.request);
  }
  for (const std::shared_ptr<PieceRequest>& request : late) {
    if (!request->Replace()) continue;  // another task may be the batch that all others wait for
    static LogPace pace(kProducerLinesASecond);
    if (const auto more = pace.Admit()) {
      const LogScope scope({.feed = feed_});
      spdlog::warn(
          "feed {}: process {} has not filled {} within {} ms (task_timeout_ms), or hung up: another one "
          "fills it too, in another slot{}",
          feed_, pid, Describe(request->plan()), task_timeout_.count(), *more);
    }
    const MutexLock lock(mutex_);
    ++counts_.dealt_again;
  }
}

bool ProducerGroup::OnHungUp(ProducerId id) {
  const MutexLock lock(mutex_);
  const auto found = producers_.find(id);
  if (found->second.tasks.empty()) {
    producers_.erase(found);
    return false;
  }
  found->second.hung_up = true;
  return true;
}

void ProducerGroup::OnEnded(ProducerId id) {
  std::vector<Task> replaced;
  std::shared_ptr<PieceRequest> given_up;
  std::string batch;  // that the process was filling
  pid_t pid = 0;
  {
    const MutexLock lock(mutex_);
    Producer producer = std::move(producers_.extract(id).mapped());
    pid = producer.pid;
    std::deque<Task> tasks;
    for (Task& task : producer.tasks) {
      if (task.request->Replaced())
        replaced.push_back(std::move(task));
      else
        tasks.push_back(std::move(task));
    }
    if (replaced.empty() && !tasks.empty()) {
      Task& first = tasks.front();  // the others were not begun
      batch = Describe(first.request->plan());
      if (id >= first.blamed_from) {
        ++first.deaths;
        first.blamed_from = next_producer_;
      }
      if (first.deaths == kMaxDeaths) {
        given_up = std::move(first.request);
        tasks.pop_front();
      }
    }
    counts_.dealt_again += tasks.size();
    for (Task& task : tasks) WaitLocked(std::move(task));
  }
  for (const Task& task : replaced) task.request->Complete(NotFilled());  // their slots are free again
  if (given_up != nullptr) {
    given_up->Complete(DataLoss(
        std::to_string(kMaxDeaths) + " processes ended while they filled " + batch + ", the last one was " +
        std::to_string(pid) +
        "; look for what kills them (the kernel's log, for lack of memory) in the samples of that batch"));
  } else if (!batch.empty()) {
    static LogPace pace(kProducerLinesASecond);
    if (const auto more = pace.Admit()) {
      const LogScope scope({.feed = feed_});
      spdlog::warn("feed {}: process {} ended while it filled {}, which is dealt again{}", feed_, pid, batch,
                   *more);
    }
  }
  Deal();
}

ProducerGroup::Counts ProducerGroup::counts() const {
  const MutexLock lock(mutex_);
  Counts counts = counts_;
  if (one_off_ != nullptr) counts.one_off = one_off_->counts();
  counts.producers = static_cast<uint32_t>(producers_.size());
  counts.waiting = static_cast<uint32_t>(waiting_.size());
  for (const auto& [id, producer] : producers_) {
    counts.busy += producer.tasks.empty() ? 0 : 1;
    counts.dealt += static_cast<uint32_t>(producer.tasks.size());
  }
  return counts;
}

ProducerGroup::State ProducerGroup::state() const {
  const MutexLock lock(mutex_);
  const Producer* slowest = nullptr;
  for (const auto& [id, producer] : producers_) {
    if (producer.tasks.empty()) continue;
    if (slowest == nullptr || producer.BeganNs() < slowest->BeganNs()) slowest = &producer;
  }
  State state;
  if (slowest != nullptr) {
    const uint64_t now = TraceClockNs();
    state = {slowest->pid, Describe(slowest->tasks.front().request->plan()),
             now - std::min(slowest->BeganNs(), now)};
  }
  const auto is_older = [](const Task& one, const Task& other) {
    return NumberOf(*one.request) < NumberOf(*other.request);
  };
  const auto first = std::min_element(beyond_end_.begin(), beyond_end_.end(), is_older);
  if (first != beyond_end_.end()) state.data_end = Describe(first->request->plan());
  return state;
}

std::vector<OngoingOperation> ProducerGroup::Operations() const {
  std::vector<OngoingOperation> all;
  const MutexLock lock(mutex_);
  for (const auto& [id, producer] : producers_) {
    if (producer.tasks.empty()) continue;
    const std::string task = Describe(producer.tasks.front().request->plan());
    all.push_back({"producer " + std::to_string(producer.pid),
                   "filling " + task + " of feed " + std::to_string(feed_),
                   std::chrono::steady_clock::time_point(std::chrono::nanoseconds(producer.BeganNs())),
                   WaitsFor::kProcess});
  }
  return all;
}

void ProducerGroup::WaitLocked(Task task) {
  // Mostly at the end: requests come nearly in order.
  const auto later = std::find_if(
      waiting_.rbegin(), waiting_.rend(),
      [number = NumberOf(*task.request)](const Task& other) { return NumberOf(*other.request) < number; });
  waiting_.insert(later.base(), std::move(task));
}

ProducerGroup::Producer* ProducerGroup::NextLocked(uint64_t lane) {
  const size_t depth = task_ns_ < kShortTaskNs ? 2 : 1;
  Producer* next = nullptr;
  for (auto& [id, producer] : producers_) {
    if (producer.lane != lane || producer.hung_up || producer.dismissed || producer.late) continue;
    if (producer.tasks.size() >= depth) continue;
    if (next == nullptr || producer.tasks.size() < next->tasks.size()) next = &producer;
  }
  return next;
}

void ProducerGroup::Deal() {
  std::vector<Task> dropped;
  {
    const MutexLock lock(mutex_);
    const auto is_replaced = [&](const Task& task) {
      const bool drop = task.request->Replaced();  // asked once: it may change meanwhile
      if (drop) dropped.push_back(task);
      return drop;
    };
    std::erase_if(waiting_, is_replaced);
    std::erase_if(beyond_end_, is_replaced);
    DealLocked();
  }
  for (const Task& task : dropped) task.request->Complete(NotFilled());
}

void ProducerGroup::DealLocked() {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (!announced_.empty() && *announced_.begin() < NumberOf(*next->request)) return;
    const BatchPlan& plan = next->request->plan();
    Producer* const producer = NextLocked(plan.batch_index % lanes_);
    if (producer == nullptr) {
      if (lanes_ == 1) return;
      ++next;
      continue;
    }
    next->id = next_task_++;
    next->dealt_ns = TraceClockNs();
    next->asked_memory = false;
    if (!producer->link->Send(
            {next->id, plan.epoch, plan.batch_index, next->request->slot(), plan.samples})) {
      producer->hung_up = true;
      continue;
    }
    producer->tasks.push_back(std::move(*next));
    next = waiting_.erase(next);
  }
}

}  // namespace pinfeed
