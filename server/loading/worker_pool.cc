// SPDX-License-Identifier: Apache-2.0
#include "server/loading/worker_pool.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "common/base/histogram.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

std::vector<std::unique_ptr<SampleScratch>> Scratches(uint32_t count) {
  std::vector<std::unique_ptr<SampleScratch>> scratches;
  for (uint32_t i = 0; i < count; ++i) scratches.push_back(std::make_unique<SampleScratch>());
  return scratches;
}

}  // namespace

WorkerPool::WorkerPool(uint32_t threads, uint32_t max_per_user, PoolKind kind,
                       std::chrono::nanoseconds keeps_buffers)
    : thread_count_(std::max(threads, 1U)),
      max_per_user_(std::max(max_per_user, 1U)),
      kind_(kind),
      keeps_buffers_(keeps_buffers),
      scratches_(Scratches(thread_count_)) {}

WorkerPool::~WorkerPool() {
  Stop();
}

void WorkerPool::Start() {
  const MutexLock lock(mutex_);
  if (stopping_) return;
  threads_.reserve(thread_count_);
  for (auto i = static_cast<uint32_t>(threads_.size()); i < thread_count_; ++i)
    threads_.push_back(StartThread(ThreadName(i), [this, i] { Loop(i, *scratches_[i]); }));
}

void WorkerPool::Stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  for (CondVar& work : work_) work.NotifyOne();
  for (std::thread& thread : threads) thread.join();
  Queue dropped;
  Queue dropped_idle;
  MutexLock lock(mutex_);
  std::swap(dropped, open_);
  std::swap(dropped_idle, idle_);
}

void WorkerPool::Add(std::shared_ptr<FillTask> task, bool idle) {
  Wake wake;
  const MutexLock lock(mutex_);
  if (!stopping_) Insert(std::move(task), idle ? idle_ : open_, wake);
}

void WorkerPool::WithdrawIdle(const FeedShare& share) {
  Tasks withdrawn;  // destroyed after the lock is given back
  MutexLock lock(mutex_);
  Tasks& tasks = idle_.tasks;
  const auto others = std::stable_partition(tasks.begin(), tasks.end(),
                                            [&](const auto& task) { return task->share_.get() == &share; });
  withdrawn.assign(std::make_move_iterator(tasks.begin()), std::make_move_iterator(others));
  tasks.erase(tasks.begin(), others);
}

void WorkerPool::Insert(std::shared_ptr<FillTask> task, Queue& queue, Wake& wake) {
  PF_CHECK(task->samples_ > 0 && task->chunk_samples_ > 0, "a task has at least one sample");
  // A feed that was away must not catch up on everything the others were served meanwhile, even if none of
  // them has a task at the moment.
  const auto shares_with = [&](const auto& other) { return other->share_.get() == task->share_.get(); };
  if (std::ranges::none_of(queue.tasks, shares_with)) {
    auto& served = task->share_->In(kind_).served_ns;
    if (served.load(std::memory_order_relaxed) < queue.level_ns)
      served.store(queue.level_ns, std::memory_order_relaxed);
  }
  // Of feeds that may not have all threads only, as those of small batches: any other thread is welcome.
  const FeedShare& share = *task->share_;
  const bool limited = IsLimit(share.MaxWorkers());
  const uint32_t finishing = limited ? share.In(kind_).finishing.load(std::memory_order_relaxed) : 0;
  const auto place = std::ranges::find_if(
      queue.tasks, [&](const auto& other) { return other->order_ > task->order_ && shares_with(other); });
  queue.tasks.insert(place, std::move(task));
  TakeSleeping(finishing, wake);
}

void WorkerPool::TakeSleeping(uint32_t finishing, Wake& wake) {
  for (CondVar*& thread : wake.threads) {
    if (sleeping_.empty() || !HasClaimableFor(waking_ + finishing + 1)) return;
    thread = sleeping_.back();
    sleeping_.pop_back();
    ++waking_;
  }
}

WorkerPool::Chunk WorkerPool::Claim() {
  Chunk chunk = ClaimFrom(open_);
  if (chunk.task != nullptr || !MayIdle()) return chunk;
  chunk = ClaimFrom(idle_);
  chunk.idle = chunk.task != nullptr;
  if (chunk.idle) ++idling_;
  return chunk;
}

WorkerPool::Chunk WorkerPool::ClaimFrom(Queue& queue) {
  Tasks& tasks = queue.tasks;
  // Few feeds times few slots: a scan is cheaper than keeping a heap whose keys change under it.
  size_t best = tasks.size();
  uint64_t least = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (MoreThreads(*tasks[i]->share_) == 0) continue;
    const uint64_t got = tasks[i]->share_->Got(kind_);
    if (best == tasks.size() || got < least) {
      best = i;
      least = got;
    }
  }
  if (best == tasks.size()) return {};
  std::shared_ptr<FillTask> task = tasks[best];
  queue.level_ns =
      std::max(queue.level_ns, task->share_->In(kind_).served_ns.load(std::memory_order_relaxed));
  const uint32_t begin = task->claimed_;
  const uint32_t end = begin + std::min(task->chunk_samples_, task->samples_ - begin);
  task->claimed_ = end;
  if (end == task->samples_) tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(best));
  if (max_per_user_ < thread_count_) ++working_[task->share_->owner];
  task->share_->In(kind_).running.fetch_add(1, std::memory_order_relaxed);
  const bool short_of_memory =
      kind_ == PoolKind::kWorkers && task->share_->memory_is_short.load(std::memory_order_relaxed);
  if (short_of_memory) ++short_of_memory_;
  return {.task = task,
          .share = task->share_.share(),
          .begin = begin,
          .end = end,
          .short_of_memory = short_of_memory};
}

uint32_t WorkerPool::MoreThreads(const FeedShare& share) const {
  const auto less = [](uint32_t limit, uint32_t have) { return limit - std::min(limit, have); };
  uint32_t more = UINT32_MAX;
  if (const uint32_t limit = share.MaxWorkers(); IsLimit(limit))
    more = less(limit, share.In(kind_).running.load(std::memory_order_relaxed));
  if (kind_ == PoolKind::kWorkers && share.memory_is_short.load(std::memory_order_relaxed))
    more = std::min(more, less(std::max(thread_count_ / 2, 1U), short_of_memory_));
  if (max_per_user_ >= thread_count_) return more;
  const auto working = working_.find(share.owner);
  return std::min(more, less(max_per_user_, working == working_.end() ? 0 : working->second));
}

bool WorkerPool::MayIdle() const {
  return idling_ < std::max(thread_count_ - 1, 1U) &&
         std::ranges::none_of(open_.tasks,
                              [&](const auto& task) { return IsLimit(task->share_->max_workers); });
}

bool WorkerPool::HasClaimableFor(uint32_t threads) const {
  return Claimable(open_, threads) >= threads || (MayIdle() && Claimable(idle_, threads) >= threads);
}

uint64_t WorkerPool::Claimable(const Queue& queue, uint32_t at_most) const {
  uint64_t chunks = 0;
  for (const std::shared_ptr<FillTask>& task : queue.tasks) {
    const uint64_t left = (task->samples_ - task->claimed_ + task->chunk_samples_ - 1) / task->chunk_samples_;
    const uint32_t more = MoreThreads(*task->share_);
    // The tasks of a limited feed share what it may have.
    chunks = more == UINT32_MAX ? chunks + left : std::max(chunks, std::min<uint64_t>(left, more));
    if (chunks >= at_most) break;
  }
  return chunks;
}

void WorkerPool::Leave(const Chunk& chunk) {
  FeedShare::PoolShare& in_pool = chunk.share->In(kind_);
  in_pool.running.fetch_sub(1, std::memory_order_relaxed);
  if (chunk.finished_task) in_pool.finishing.fetch_sub(1, std::memory_order_relaxed);
  if (chunk.idle) --idling_;
  if (chunk.short_of_memory) --short_of_memory_;
  if (max_per_user_ >= thread_count_) return;
  const auto working = working_.find(chunk.share->owner);
  if (--working->second == 0) working_.erase(working);
}

WorkerPool::Durations WorkerPool::durations() const {
  Durations sum;
  for (const auto& scratch : scratches_) {
    sum.read += scratch->durations().read.Counts();
    sum.decode += scratch->durations().decode.Counts();
  }
  return sum;
}

uint64_t WorkerPool::progress() const {
  uint64_t chunks = 0;
  for (const Activity& activity : activities_) chunks += activity.finished.load(std::memory_order_relaxed);
  return chunks;
}

uint32_t WorkerPool::busy() const {
  return static_cast<uint32_t>(std::ranges::count_if(
      activities_, [](const Activity& activity) { return activity.since.load() != 0; }));
}

std::chrono::nanoseconds WorkerPool::LongestChunk() const {
  const Clock::time_point now = Clock::now();
  Clock::duration longest{0};
  for (const Activity& activity : activities_) {
    const Clock::rep since = activity.since.load(std::memory_order_relaxed);
    if (since != 0) longest = std::max(longest, now - Clock::time_point(Clock::duration(since)));
  }
  return longest;
}

std::vector<WorkerPool::LongChunk> WorkerPool::ChunksLongerThan(std::chrono::nanoseconds limit) const {
  const Clock::time_point now = Clock::now();
  std::vector<LongChunk> found;
  for (uint32_t i = 0; i < thread_count_; ++i) {
    const Clock::rep since = activities_[i].since.load(std::memory_order_acquire);
    const LongChunk chunk{now - Clock::time_point(Clock::duration(since)), i,
                          activities_[i].feed.load(std::memory_order_relaxed), scratches_[i]->sample()};
    if (since != 0 && chunk.age > limit) found.push_back(chunk);
  }
  std::sort(found.begin(), found.end(), [](const LongChunk& a, const LongChunk& b) { return a.age > b.age; });
  return found;
}

void WorkerPool::Loop(uint32_t index, SampleScratch& scratch) {
  CondVar& work = work_[index];
  Activity& activity = activities_[index];
  Chunk chunk;
  bool has_buffers = false;
  Clock::time_point worked_until;  // read only with buffers
  while (true) {
    {
      Wake wake;
      MutexLock lock(mutex_, MutexLock::Adaptively{});
      if (chunk.share != nullptr) Leave(chunk);
      bool is_idle = false;
      while (!stopping_ && (chunk = Claim()).task == nullptr && !is_idle) {
        sleeping_.insert(has_buffers ? sleeping_.end() : sleeping_.begin(), &work);
        if (has_buffers) {
          is_idle = !work.WaitUntil(mutex_, worked_until + keeps_buffers_);
        } else {
          work.Wait(mutex_);
        }
        if (std::erase(sleeping_, &work) == 0) --waking_;  // else nobody has woken it
      }
      if (stopping_) return;
      if (chunk.task != nullptr) TakeSleeping(0, wake);
    }
    has_buffers = chunk.task != nullptr;
    if (!has_buffers) {
      scratch.Trim();
      continue;
    }
    FillTask& task = *chunk.task;
    FeedShare::PoolShare& in_pool = chunk.share->In(kind_);
    const Clock::time_point start = Clock::now();
    activity.feed.store(chunk.share->feed, std::memory_order_relaxed);
    activity.since.store(start.time_since_epoch().count(), std::memory_order_release);
    scratch.SetShare(chunk.share.get());
    task.Run(chunk.begin, chunk.end, scratch);
    worked_until = Clock::now();
    const uint64_t spent = Nanoseconds(worked_until - start);
    in_pool.served_ns.fetch_add(spent, std::memory_order_relaxed);
    in_pool.worked_ns.fetch_add(spent, std::memory_order_relaxed);
    const uint32_t samples = chunk.end - chunk.begin;
    chunk.finished_task = task.unfinished_.fetch_sub(samples, std::memory_order_acq_rel) == samples;
    if (chunk.finished_task) {
      in_pool.finishing.fetch_add(1, std::memory_order_relaxed);
      task.Done();
    }
    chunk.task.reset();
    activity.since.store(0, std::memory_order_relaxed);
    activity.finished.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace pinfeed
