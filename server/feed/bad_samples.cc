// SPDX-License-Identifier: Apache-2.0
#include "server/feed/bad_samples.h"

#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/log_pace.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxKept = 16;
constexpr uint32_t kMaxLoggedPerSecond = 10;
constexpr uint64_t kMaxWarnings = 100;  // of one feed; later samples are logged as info

}  // namespace

void BadSampleLog::Log(const std::vector<BadSampleNote>& bad) {
  if (bad.empty()) return;
  static LogPace pace(kMaxLoggedPerSecond);
  const LogScope scope({.feed = feed_});
  uint64_t before = logged_.fetch_add(bad.size());
  for (const BadSampleNote& note : bad) {
    const auto level = before++ < kMaxWarnings ? spdlog::level::warn : spdlog::level::info;
    if (!spdlog::should_log(level)) continue;
    if (const auto more = pace.Admit())
      spdlog::log(level, "feed {}: bad sample {}: {}{}", feed_, note.sample_id, note.reason, *more);
  }
}

void BadSamples::Add(const FillResult& result) {
  count_ += result.bad_samples;
  newest_.insert(newest_.end(), result.bad.begin(), result.bad.end());
  if (newest_.size() > kMaxKept) newest_.erase(newest_.begin(), newest_.end() - kMaxKept);
}

Status BadSamples::CheckBatch(const BatchPlan& plan, const FillResult& result) {
  // Those at the end of an epoch that had a good sample do not count for the next one.
  const bool counts_whole_epochs = bad_batches_ % batches_per_epoch_ == 0;
  if (!result.all_bad || (plan.batch_index == 0 && !counts_whole_epochs)) bad_batches_ = 0;
  if (!result.all_bad) return OkStatus();
  if (bad_batches_++ == 0) first_reason_ = result.bad.front().reason;
  if (bad_batches_ / ranks_ < batches_per_epoch_) return OkStatus();
  const char* const choice = choice_ == OnBadSample::kSkip ? "skip" : "zero";
  const std::string epochs =
      ranks_ == 1 ? "a whole epoch" : std::to_string(ranks_) + " whole epochs of this rank";
  return DataLoss(std::string("on_bad_sample ") + choice + ": " + epochs + " (" +
                  std::to_string(bad_batches_) +
                  " batches) had no good sample; the first bad one: " + first_reason_);
}

}  // namespace pinfeed
