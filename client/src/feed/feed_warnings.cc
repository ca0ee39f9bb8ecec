// SPDX-License-Identifier: Apache-2.0
#include "client/src/feed/feed_warnings.h"

#include <string>
#include <utility>

#include "client/src/base/client_log.h"
#include "client/src/base/deadline.h"
#include "client/src/decode/decoded_batches.h"

namespace pinfeed {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::seconds kWarnAfter{1};
constexpr std::chrono::seconds kWarnPause{30};
// Shorter waits are usual, for example at the start of an epoch on a slow disk.
constexpr std::chrono::seconds kVeryLong{30};
constexpr std::chrono::minutes kVeryLongPause{5};

// Whether a warning of a kind may be logged now, which it then is.
bool IsDue(SteadyTime* next, std::chrono::seconds pause = kWarnPause) {
  const SteadyTime now = std::chrono::steady_clock::now();
  if (now < *next) return false;
  *next = now + pause;
  return true;
}

}  // namespace

void FeedWarnings::SamplesAreBad(const BatchDescriptor& batch) {
  skipped_samples_ += batch.skipped;
  zeroed_samples_ += batch.zeroed;
  const uint64_t bad = skipped_samples_ + zeroed_samples_;
  if (bad == told_bad_) return;
  const bool is_empty = batch.samples == 0 && batch.skipped > 0 && !said_empty_;
  const bool ends_epoch = (batch.flags & kFlagLastOfEpoch) != 0 && IsDue(&next_of_epochs_);
  if (!IsDue(&next_of_bad_) && !is_empty && !ends_epoch) return;
  const uint64_t untold = bad - std::exchange(told_bad_, bad);
  const std::string where =
      "batch " + std::to_string(batch.batch_index) + " of epoch " + std::to_string(batch.epoch);
  const std::string list =
      "`pinfeed status --json` lists the latest while the feed is open, with files and reasons";
  if (is_empty) {
    said_empty_ = true;
    ClientLog(
        PF_LOG_WARNING,
        where + " is empty: all its " + std::to_string(batch.skipped) +
            " samples are bad and on_bad_sample is skip. The mean of an empty tensor is NaN, and a NaN loss "
            "ruins the model at the next step: check the number of samples first. on_bad_sample zero with "
            "valid keeps every batch's size and marks the good samples. " +
            list);
    if (untold == batch.skipped) return;
  }
  ClientLog(PF_LOG_WARNING, std::to_string(bad) + (bad == 1 ? " bad sample" : " bad samples") + ", up to " +
                                where + (zeroed_samples_ > 0 ? ", made zeros" : ", left out of the batches") +
                                " as on_bad_sample says: " + list);
}

void FeedWarnings::MayHoldAll(nanoseconds waited, uint32_t held, uint32_t slots) {
  if (waited < kWarnAfter || held < slots || !IsDue(&next_of_waiting_)) return;
  const std::string count = std::to_string(slots);
  ClientLog(PF_LOG_WARNING, "no batch for " + Seconds(waited) + ": all " + count +
                                " slots are held by batches that this process "
                                "has not released, so none can be filled; release them sooner (copy what is "
                                "kept), or raise the spec's slots above " +
                                count);
}

void FeedWarnings::NoBatchComes(nanoseconds waited, const std::string& daemon_address,
                                uint32_t held_of_group) {
  if (waited < kVeryLong || !IsDue(&next_of_silence_, kVeryLongPause)) return;
  ClientLog(PF_LOG_WARNING,
            "no batch for " + Seconds(waited) + " from the daemon at " + daemon_address +
                "; `pinfeed status` says what the feed waits for. If that gets no answer "
                "either, the daemon is stopped or hangs" +
                (held_of_group == 0 ? ""
                                    : ". This member holds " + std::to_string(held_of_group) +
                                          " of the group's slots: if all members together hold all of "
                                          "them, none can be filled; copy what is kept "
                                          "(Python: zero_copy=None), or raise the spec's slots"));
}

void FeedWarnings::DecoderIsSlow(nanoseconds waited, uint32_t held) {
  if (waited < kWarnAfter || !IsDue(&next_of_waiting_)) return;
  const bool full = held >= DecodedBatches::kRing;
  ClientLog(PF_LOG_WARNING,
            "no batch for " + Seconds(waited) +
                (full ? ": " + std::to_string(held) +
                            " batches were taken and neither written nor released, and no more are decoded "
                            "ahead; write or release them first"
                      : ": the next one is published, and the GPU has not decoded its images yet. In a "
                        "broadcast, one process decodes for all on its GPU: is it stopped or busy?"));
}

void FeedWarnings::NotReconnected(nanoseconds away, const std::string& daemon_address, const Status& tried) {
  const bool refused = tried.code() != Code::kUnavailable;
  if ((!refused && away < kVeryLong) || !IsDue(&next_of_tries_)) return;
  ClientLog(PF_LOG_WARNING, "not reconnected to the daemon at " + daemon_address + " after " + Seconds(away) +
                                ", trying on: " + tried.message());
}

void FeedWarnings::ImagesAreZeroed(const DecodeRing::Outcome& outcome) {
  zeroed_images_ += outcome.zeroed.size();
  if (!IsDue(&next_of_zeroed_)) return;
  ClientLog(PF_LOG_WARNING, outcome.first_failure.message() + "; such samples are zeros (" +
                                std::to_string(zeroed_images_) +
                                " so far), and the daemon does not count them as bad");
}

}  // namespace pinfeed
