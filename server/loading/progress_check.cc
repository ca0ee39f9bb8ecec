// SPDX-License-Identifier: Apache-2.0
#include "server/loading/progress_check.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace pinfeed {
namespace {

std::string InSeconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

// Describes a hang in one line: that of the worker that hangs longest, else of a reader, else of a GPU.
std::string Describe(const std::vector<HungThread>& hung) {
  const HungThread& first = hung.front();
  if (!first.gpu.empty())
    return "no copy of " + first.thread + " to " + first.gpu + " has ended for " + InSeconds(first.age) +
           " (stuck_timeout)";
  const bool reads = first.pool == PoolKind::kReaders;
  std::string text = std::string(reads ? "a reader" : "a worker") + " has been at one piece of work for " +
                     InSeconds(first.age) +
                     ", as when storage does not answer or a file is huge (stuck_timeout)";
  if (!first.sample_name.empty())
    text += ": sample " + std::to_string(first.sample) + " of feed " + std::to_string(first.feed) + ", " +
            first.sample_name;
  const auto count = [&](PoolKind pool) {
    return std::ranges::count_if(
        hung, [pool](const HungThread& thread) { return thread.gpu.empty() && thread.pool == pool; });
  };
  const auto more_workers = count(PoolKind::kWorkers) - (reads ? 0 : 1);
  const auto more_readers = count(PoolKind::kReaders) - (reads ? 1 : 0);
  if (more_workers > 0) text += "; more workers that hang: " + std::to_string(more_workers);
  if (more_readers > 0) text += "; more readers that hang: " + std::to_string(more_readers);
  return text;
}

const char* AdviceOn(WaitsFor what) {
  switch (what) {
    case WaitsFor::kDaemon:
      return "what waits behind it is not given back until it continues";
    case WaitsFor::kStorage:
      return "does its storage answer, or is a file huge?";
    case WaitsFor::kProcess:
      return "is the process stopped, or does its dataset wait for something? `py-spy dump --pid` shows "
             "where";
  }
  return "";
}

constexpr std::chrono::milliseconds kShortestInterval(50);
constexpr std::chrono::milliseconds kLongestInterval(10000);

}  // namespace

std::chrono::milliseconds ProgressCheck::interval() const {
  std::chrono::milliseconds interval = std::chrono::milliseconds::max();
  if (const std::chrono::milliseconds limit = limit_; limit.count() != 0) interval = limit / 8;
  if (parts_.operations) interval = std::min(interval, parts_.operation_limit / 2);
  if (interval == std::chrono::milliseconds::max()) return interval;
  return std::clamp(interval, kShortestInterval, kLongestInterval);
}

std::string ProgressCheck::Stuck() {
  const std::chrono::milliseconds limit = limit_;
  const std::vector<GpuSnapshot> gpus = parts_.gpus ? parts_.gpus() : std::vector<GpuSnapshot>();
  uint64_t done = parts_.workers.progress();
  if (parts_.readers != nullptr) done += parts_.readers->progress();
  for (const GpuSnapshot& gpu : gpus) done += gpu.copied_bytes + gpu.peer_bytes;
  const Clock::time_point now = Clock::now();
  LogSlowOperations(now);
  if (std::exchange(done_, done) != done) progressed_at_ = now;
  const std::vector<HungThread> found = HungAtBatches(gpus);
  if (found.empty()) {
    Enter(State::kHealthy, {});
    return {};
  }
  const std::string hung = Describe(found);
  // Between half the limit and the limit, the state stays: the others may still make progress.
  if (now - progressed_at_ <= limit / 2) Enter(State::kPartlyHung, hung);
  if (now - progressed_at_ <= limit) return {};
  std::string stuck = hung + ", and nothing else was done for " + InSeconds(now - progressed_at_);
  Enter(State::kStuck, stuck);
  return stuck;
}

void ProgressCheck::Enter(State state, const std::string& hung) {
  if (std::exchange(state_, state) == state) return;
  switch (state) {
    case State::kHealthy:
      spdlog::info("nothing hangs any more");
      return;
    case State::kPartlyHung:
      spdlog::error("{}; the others work, so the daemon continues", hung);
      return;
    case State::kStuck:
      spdlog::error("{}: {}", hung,
                    parts_.watched ? "the service manager's watchdog is not fed until this changes"
                                   : "no feed makes progress until this changes");
      return;
  }
}

void ProgressCheck::LogSlowOperations(Clock::time_point now) {
  if (!parts_.operations) return;
  const std::vector<OngoingOperation> under_way = parts_.operations();
  const auto among = [](const std::vector<OngoingOperation>& all, const OngoingOperation& one) {
    return std::ranges::find(all, one) != all.end();
  };
  std::erase_if(logged_operations_, [&](const OngoingOperation& one) {
    if (among(under_way, one)) return false;
    spdlog::info("{}: {} is no longer waited for, after {}", one.thread, one.what,
                 InSeconds(now - one.since));
    return true;
  });
  for (const OngoingOperation& one : under_way) {
    if (now - one.since <= LimitOf(one) || among(logged_operations_, one)) continue;
    spdlog::error("{}: {} has taken {} so far; {}", one.thread, one.what, InSeconds(now - one.since),
                  AdviceOn(one.waits_for));
    logged_operations_.push_back(one);
  }
}

ProgressCheck::Clock::duration ProgressCheck::LimitOf(const OngoingOperation& operation) const {
  if (operation.waits_for == WaitsFor::kDaemon) return parts_.operation_limit;
  const std::chrono::milliseconds limit = limit_;
  // Clock::duration::max(), since milliseconds::max() would overflow when compared with the clock's time.
  return limit.count() == 0 ? Clock::duration::max() : limit;
}

std::vector<HungThread> ProgressCheck::Hung(const std::vector<GpuSnapshot>& gpus) const {
  std::vector<HungThread> hung = HungAtBatches(gpus);
  if (!parts_.operations) return hung;
  const Clock::time_point now = Clock::now();
  for (const OngoingOperation& operation : parts_.operations()) {
    if (now - operation.since > LimitOf(operation))
      hung.push_back({.thread = operation.thread, .age = now - operation.since, .operation = operation.what});
  }
  return hung;
}

std::vector<HungThread> ProgressCheck::HungAtBatches(const std::vector<GpuSnapshot>& gpus) const {
  const std::chrono::milliseconds limit = limit_;
  std::vector<HungThread> hung;
  if (limit.count() == 0) return hung;
  AddHung(parts_.workers, limit, hung);
  if (parts_.readers != nullptr) AddHung(*parts_.readers, limit, hung);
  for (const GpuSnapshot& gpu : gpus) {
    for (const GpuSnapshot::CopyThread& thread : gpu.copy_threads)
      if (thread.stalled > limit)
        hung.push_back({.thread = thread.name, .age = thread.stalled, .gpu = gpu.uuid});
  }
  return hung;
}

void ProgressCheck::AddHung(const WorkerPool& pool, std::chrono::milliseconds limit,
                            std::vector<HungThread>& hung) const {
  for (const WorkerPool::LongChunk& chunk : pool.ChunksLongerThan(limit)) {
    HungThread& thread = hung.emplace_back();
    thread.thread = pool.ThreadName(chunk.thread);
    thread.age = chunk.age;
    thread.feed = chunk.feed;
    thread.sample = chunk.sample;
    if (parts_.sample_name) thread.sample_name = parts_.sample_name(chunk.feed, chunk.sample);
    thread.pool = pool.kind();
  }
}

}  // namespace pinfeed
