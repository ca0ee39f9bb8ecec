// SPDX-License-Identifier: Apache-2.0
#include "server/pipeline/progress_check.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace pinfeed {
namespace {

std::string InSeconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

constexpr std::chrono::milliseconds kShortestInterval(50);
constexpr std::chrono::milliseconds kLongestInterval(10000);

}  // namespace

std::chrono::milliseconds ProgressCheck::interval() const {
  std::chrono::milliseconds interval = std::chrono::milliseconds::max();
  if (limit_.count() != 0) interval = limit_ / 8;
  if (parts_.clean_ups) interval = std::min(interval, parts_.clean_up_limit / 2);
  if (interval == std::chrono::milliseconds::max()) return interval;
  return std::clamp(interval, kShortestInterval, kLongestInterval);
}

std::string ProgressCheck::Stuck() {
  const std::vector<GpuSnapshot> gpus = parts_.gpus ? parts_.gpus() : std::vector<GpuSnapshot>();
  uint64_t done = parts_.workers.progress();
  for (const GpuSnapshot& gpu : gpus) done += gpu.copied_bytes + gpu.peer_bytes;
  const Clock::time_point now = Clock::now();
  LookAtCleanUps(now);
  if (std::exchange(done_, done) != done) moved_at_ = now;
  const std::string hung = FindHung(gpus);
  if (hung.empty()) {
    Enter(State::kWell, {});
    return {};
  }
  // Between the two it is not known yet whether the rest gets on or has stopped as well.
  if (now - moved_at_ <= limit_ / 2) Enter(State::kPartly, hung);
  if (now - moved_at_ <= limit_) return {};
  std::string stuck = hung + ", and nothing else was done for " + InSeconds(now - moved_at_);
  Enter(State::kStuck, stuck);
  return stuck;
}

void ProgressCheck::Enter(State state, const std::string& hung) {
  if (std::exchange(state_, state) == state) return;
  switch (state) {
    case State::kWell:
      spdlog::info("what hung moves again");
      return;
    case State::kPartly:
      spdlog::error("{}; the rest gets on, so the daemon goes on", hung);
      return;
    case State::kStuck:
      spdlog::error("{}: {}", hung,
                    parts_.watched ? "the service manager's watchdog is not fed until this changes"
                                   : "no feed gets on until this changes");
      return;
  }
}

void ProgressCheck::LookAtCleanUps(Clock::time_point now) {
  if (!parts_.clean_ups) return;
  const std::vector<CleanUp> under_way = parts_.clean_ups();
  const auto among = [](const std::vector<CleanUp>& all, const CleanUp& one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  std::erase_if(told_, [&](const CleanUp& one) {
    if (among(under_way, one)) return false;
    spdlog::info("{} went on after {}", one.what, InSeconds(now - one.since));
    return true;
  });
  for (const CleanUp& one : under_way) {
    if (now - one.since <= parts_.clean_up_limit || among(told_, one)) continue;
    spdlog::error("{} has taken {} so far; until it goes on, what is to be given back behind it stays",
                  one.what, InSeconds(now - one.since));
    told_.push_back(one);
  }
}

std::string ProgressCheck::FindHung(const std::vector<GpuSnapshot>& gpus) const {
  if (limit_.count() == 0) return {};
  if (const auto chunks = parts_.workers.ChunksLongerThan(limit_); !chunks.empty()) {
    const WorkerPool::LongChunk& longest = chunks.front();
    std::string text = "a worker has been at one piece of work for " + InSeconds(longest.age) +
                       ", as when storage does not answer (stuck_timeout)";
    const std::string name =
        parts_.sample_name ? parts_.sample_name(longest.feed, longest.sample) : std::string();
    if (!name.empty())
      text += ": sample " + std::to_string(longest.sample) + " of feed " + std::to_string(longest.feed) +
              ", " + name;
    if (chunks.size() > 1) text += ", and more workers likewise: " + std::to_string(chunks.size() - 1);
    return text;
  }
  for (const GpuSnapshot& gpu : gpus) {
    if (gpu.stalled > limit_)
      return "no copy to " + gpu.uuid + " has ended for " + InSeconds(gpu.stalled) + " (stuck_timeout)";
  }
  return {};
}

}  // namespace pinfeed
