// SPDX-License-Identifier: Apache-2.0
#include "server/loading/read_ahead.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "common/base/log.h"
#include "common/wire/shared_page.h"

namespace pinfeed {
namespace {

// Small samples are asked for several at a time: a trip through the pool's lock takes longer than one of
// them, and neighbours become one read.
constexpr uint64_t kRequestBytes = 128 * 1024;
constexpr uint64_t kMaxChunk = 64;

}  // namespace

// Purpose: asks for some samples. Owns: a share of the ReadAhead.
class ReadAhead::Task final : public FillTask {
 public:
  // `ids`: of the samples at the places from `first` on.
  Task(std::shared_ptr<ReadAhead> ahead, std::shared_ptr<FeedShare> share, uint64_t first,
       std::vector<uint64_t> ids, uint32_t chunk)
      : FillTask(std::move(share), static_cast<uint32_t>(ids.size()), chunk, first),
        ahead_(std::move(ahead)),
        first_(first),
        ids_(std::move(ids)) {
    ahead_->tasks_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Task() override { ahead_->tasks_.fetch_sub(1, std::memory_order_relaxed); }

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) override {
    Tally tally;
    for (uint32_t i = begin; i < end && ahead_->on_.load(std::memory_order_relaxed);) {
      uint32_t run = 1;  // neighbours in the dataset
      while (i + run < end && ids_[i + run] == ids_[i] + run) ++run;
      tally.useless_run += run;
      if (ahead_->Ahead(first_ + i + run - 1)) {
        scratch.Begin(ids_[i]);
        const Prefetched asked = ahead_->loader_->Prefetch(ids_[i], run);
        tally.samples += run;
        tally.bytes += asked.bytes;
        if (!asked.cached) {
          tally.cold_samples += run;
          tally.cold_bytes += asked.bytes;
          tally.useless_run = 0;
        }
      }
      i += run;
    }
    if (tally.samples + tally.useless_run > 0) ahead_->Note(tally);
  }
  void Done() override {}

 private:
  const std::shared_ptr<ReadAhead> ahead_;
  const uint64_t first_;
  const std::vector<uint64_t> ids_;
};

ReadAhead::ReadAhead(std::shared_ptr<const SampleLoader> loader, Sampler sampler, uint64_t epochs,
                     WorkerPool& readers)
    : loader_(std::move(loader)), sampler_(std::move(sampler)), epochs_(epochs), readers_(readers) {}

uint64_t ReadAhead::Add(const BatchPlan& plan, uint32_t begin, const FeedShare& feed) {
  uint64_t place = 0;
  std::shared_ptr<FillTask> task;
  {
    const MutexLock lock(mutex_);
    if (share_ == nullptr) share_ = std::make_shared<FeedShare>(feed.owner, feed.feed);
    place = PlaceOf(plan, begin);
    task = Next();
  }
  if (task != nullptr) readers_.Submit(std::move(task));
  return place;
}

uint64_t ReadAhead::PlaceOf(const BatchPlan& plan, uint32_t begin) {
  const auto is = [&](const Range& range) {
    return range.plan.epoch == plan.epoch && range.plan.batch_index == plan.batch_index &&
           range.begin <= begin;
  };
  auto known = std::find_if(ranges_.begin(), ranges_.end(), is);
  if (known == ranges_.end()) {
    // It may follow soon: pieces are added in about their order, by several threads. For the same reason
    // ranges stay a while when a worker has begun behind them.
    bool follows = false;
    for (uint32_t i = 0; i < kMaxSlots && end_ > 0 && !follows && Extend(); ++i) follows = is(ranges_.back());
    if (!follows) {
      // The feed begins, or goes elsewhere, so what was to follow does not.
      if (end_ > 0 && on_.load(std::memory_order_relaxed)) Advance(end_ - 1);
      Append(plan, begin);
    }
    known = std::prev(ranges_.end());
  }
  return known->first + (begin - known->begin);
}

void ReadAhead::Append(const BatchPlan& plan, uint32_t begin) {
  ranges_.push_back({end_, plan, begin, plan.samples});
  last_ = plan;
  end_ = ranges_.back().past();
}

bool ReadAhead::Extend() {
  uint64_t epoch = last_.epoch;
  uint64_t batch = last_.batch_index + 1;
  if (last_.last_of_epoch) {
    ++epoch;
    batch = 0;
  }
  if (epoch > kMaxEpoch || (epochs_ != 0 && epoch >= epochs_)) return false;
  Append(sampler_.Plan(epoch, batch), 0);
  return true;
}

void ReadAhead::Continue() {
  std::shared_ptr<FillTask> task;
  {
    const MutexLock lock(mutex_);
    task = Next();
  }
  if (task != nullptr) readers_.Submit(std::move(task));
}

void ReadAhead::SwitchOn(uint64_t place, bool surely) {
  {
    const MutexLock lock(mutex_);
    if (stopped_ || (place < quiet_until_ && !surely)) return;
    if (!on_.load(std::memory_order_relaxed)) on_from_ = place;
    useless_run_ = 0;
    found_cold_ = false;
    ask_from_ = 0;
  }
  try {
    readers_.Start();
  } catch (const std::system_error& error) {
    spdlog::warn("cannot start the readers, so nothing is read ahead: {}", error.what());
    const MutexLock lock(mutex_);
    stopped_ = true;
    quiet_until_ = UINT64_MAX;  // so that workers do not take the lock for it
    return;
  }
  {
    const MutexLock lock(mutex_);
    if (stopped_) return;
    // Several workers may get here at once.
    if (!on_.exchange(true)) ++use_.starts;
  }
  Continue();
}

std::shared_ptr<FillTask> ReadAhead::Next() {
  const uint64_t begun = begun_.load(std::memory_order_relaxed);
  while (ranges_.size() > kMaxSlots && ranges_[kMaxSlots].past() <= begun) ranges_.pop_front();
  if (stopped_ || !MayAsk()) return nullptr;
  const uint64_t sample_bytes =
      samples_ == 0 ? kWindowBytes / kFirstWindow : std::max<uint64_t>(1, bytes_ / samples_);
  // A false alarm must not cost more than it takes to find out. On a slow disk, the first batches must not
  // wait for samples far behind them, so the window grows with what the workers have done.
  const uint64_t grown = kFalseAlarmRun + 2 * (begun - std::min(begun, on_from_));
  const uint64_t window = std::clamp(kWindowBytes / sample_bytes, kMinWindow,
                                     found_cold_ ? std::min(kMaxWindow, grown) : kFalseAlarmRun);
  const auto chunk = static_cast<uint32_t>(std::clamp<uint64_t>(kRequestBytes / sample_bytes, 1, kMaxChunk));
  next_ = std::max(next_, begun + 1);
  while (end_ <= begun + window && Extend()) {
  }
  const uint64_t limit = std::min(end_, begun + 1 + window);
  // A few samples are left for later, so that tasks do not get tiny.
  if (limit < next_ + window / 8 && limit < end_) {
    ask_from_ = next_ + window / 8 - window - 1;
    return nullptr;
  }
  const uint64_t first = next_;
  std::vector<uint64_t> ids;
  for (const Range& range : ranges_) {
    if (range.past() <= next_) continue;
    if (next_ >= limit) break;
    const BatchSamples samples = sampler_.SamplesOf(range.plan);
    for (; next_ < std::min(range.past(), limit); ++next_)
      ids.push_back(samples[range.begin + static_cast<uint32_t>(next_ - range.first)]);
  }
  if (ids.empty()) return nullptr;
  return std::make_shared<Task>(shared_from_this(), share_, first, std::move(ids), chunk);
}

void ReadAhead::Note(const Tally& tally) {
  const MutexLock lock(mutex_);
  samples_ += tally.samples;
  bytes_ += tally.bytes;
  ask_from_ = 0;  // the window may have become larger
  use_.samples += tally.cold_samples;
  use_.bytes += tally.cold_bytes;
  if (tally.cold_samples > 0) {
    found_cold_ = true;
    useless_run_ = 0;
  }
  useless_run_ += tally.useless_run;
  if (!on_.load(std::memory_order_relaxed) || useless_run_ < (found_cold_ ? kUselessRun : kFalseAlarmRun))
    return;
  on_ = false;
  quiet_ = found_cold_ ? kMinQuiet : std::min(2 * quiet_, kMaxQuiet);
  quiet_until_ = begun_.load(std::memory_order_relaxed) + quiet_;
}

ReadAheadUse ReadAhead::use() const {
  const MutexLock lock(mutex_);
  ReadAheadUse use = use_;
  use.on = on_.load(std::memory_order_relaxed);
  return use;
}

void ReadAhead::Stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  on_ = false;
}

}  // namespace pinfeed
