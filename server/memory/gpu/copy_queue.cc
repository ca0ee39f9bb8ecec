// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/copy_queue.h"

#include <algorithm>

namespace pinfeed {

CopyQueue::LaneState& CopyQueue::AddLane() {
  const MutexLock lock(mutex_);
  return *lanes_.emplace_back(std::make_unique<LaneState>());
}

void CopyQueue::RemoveLane(const LaneState& lane) {
  const MutexLock lock(mutex_);
  PF_CHECK(lane.jobs.empty(), "a lane is destroyed only when its jobs are done");
  std::erase_if(lanes_, [&](const auto& entry) { return entry.get() == &lane; });
}

void CopyQueue::Submit(LaneState& lane, CopyJob job) {
  const Status failed = Push(lane, job);
  if (!failed.ok()) return job.done(failed, {});
  changed_.NotifyOne();
}

Status CopyQueue::Push(LaneState& lane, CopyJob& job) {
  const MutexLock lock(mutex_);
  if (!failed_.ok()) return failed_;
  lane.jobs.push_back({std::move(job), Clock::now()});
  ++changes_;
  return OkStatus();
}

void CopyQueue::SetWaiting(LaneState& lane, const std::shared_ptr<ReleaseReader>& reader, bool waiting) {
  const MutexLock lock(mutex_);
  lane.waiting = waiting;
  lane.reader = reader;
  if (!waiting) return;
  ++changes_;
  changed_.NotifyOne();
}

std::optional<CopyQueue::WaitingJob> CopyQueue::Take(bool& closed) {
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    LaneState& lane = *lanes_[(next_lane_ + i) % lanes_.size()];
    if (lane.jobs.empty()) continue;
    next_lane_ = (next_lane_ + i + 1) % lanes_.size();
    std::optional<WaitingJob> job(std::move(lane.jobs.front()));
    lane.jobs.pop_front();
    return job;
  }
  closed = closed_;
  return std::nullopt;
}

std::vector<std::shared_ptr<ReleaseReader>> CopyQueue::Readers() const {
  std::vector<std::shared_ptr<ReleaseReader>> readers;
  const MutexLock lock(mutex_);
  for (const auto& lane : lanes_) {
    if (!lane->waiting) continue;
    if (auto reader = lane->reader.lock()) readers.push_back(std::move(reader));
  }
  return readers;
}

bool CopyQueue::AwaitChange(std::optional<std::chrono::nanoseconds> limit) {
  const MutexLock lock(mutex_);
  if (changes_ != 0) {
    changes_ = 0;
    return true;
  }
  if (limit) {
    changed_.WaitUntil(mutex_, Clock::now() + *limit);
  } else {
    while (changes_ == 0) changed_.Wait(mutex_);
  }
  return false;
}

std::optional<std::vector<CopyJob>> CopyQueue::Fail(const Status& error) {
  const MutexLock lock(mutex_);
  if (!failed_.ok()) return std::nullopt;
  failed_ = error;
  std::vector<CopyJob> jobs;
  for (const auto& lane : lanes_) {
    for (WaitingJob& waiting : lane->jobs) jobs.push_back(std::move(waiting.job));
    lane->jobs.clear();
  }
  return jobs;
}

void CopyQueue::Close() {
  {
    const MutexLock lock(mutex_);
    PF_CHECK(lanes_.empty(), "arenas are destroyed before their copy engine");
    closed_ = true;
    ++changes_;
  }
  changed_.NotifyAll();
}

std::optional<CopyQueue::Clock::time_point> CopyQueue::WaitingSince() const {
  const MutexLock lock(mutex_);
  std::optional<Clock::time_point> since;
  for (const auto& lane : lanes_) {
    if (lane->jobs.empty()) continue;
    since = std::min(since.value_or(Clock::time_point::max()), lane->jobs.front().since);
  }
  return since;
}

}  // namespace pinfeed
