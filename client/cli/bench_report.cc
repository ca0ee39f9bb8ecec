// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench_report.h"

#include <algorithm>
#include <cstdio>

#include "client/cli/text.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxLatencies = 4 << 20;  // 32 MiB; in a very long run, the first ones only
constexpr double kShortSeconds = 0.1;      // a run

// Nearest-rank percentile of sorted values. 0 if there are none.
uint64_t Percentile(const std::vector<uint64_t>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(rank, sorted.size() - 1)];
}

}  // namespace

void BenchReport::Add(uint64_t samples, uint64_t bytes, uint64_t took_ns, bool was_ready) {
  ++batches_;
  samples_ += samples;
  bytes_ += bytes;
  if (!was_ready) {
    wait_ns_ += took_ns;
  } else if (ready_ns_.size() < kMaxLatencies) {
    ready_ns_.push_back(took_ns);
  }
}

void BenchReport::SetOpened(uint64_t open_ns, uint64_t first_batch_ns) {
  open_ns_ = open_ns;
  first_batch_ns_ = first_batch_ns;
}

Json BenchReport::ToJson() const {
  std::vector<uint64_t> sorted = ready_ns_;
  std::sort(sorted.begin(), sorted.end());
  const double seconds = static_cast<double>(std::max<uint64_t>(elapsed_ns_, 1)) / 1e9;
  return {{"open_seconds", static_cast<double>(open_ns_) / 1e9},
          {"first_batch_seconds", static_cast<double>(first_batch_ns_) / 1e9},
          {"seconds", seconds},
          {"batches", batches_},
          {"samples", samples_},
          {"bytes", bytes_},
          {"batches_per_second", static_cast<double>(batches_) / seconds},
          {"samples_per_second", static_cast<double>(samples_) / seconds},
          {"gigabytes_per_second", static_cast<double>(bytes_) / 1e9 / seconds},
          {"wait_share", static_cast<double>(wait_ns_) / 1e9 / seconds},
          {"ready_batches", sorted.size()},
          {"ready_ns",
           {{"p50", Percentile(sorted, 0.50)},
            {"p90", Percentile(sorted, 0.90)},
            {"p99", Percentile(sorted, 0.99)},
            {"max", Percentile(sorted, 1)}}},
          {"feed", feed_status_}};
}

void BenchReport::Print() const {
  const Json report = ToJson();
  const auto number = [&](const char* name) { return report[name].get<double>(); };
  std::printf("open %s, first batch after %s\n", Duration(number("open_seconds")).c_str(),
              Duration(number("first_batch_seconds")).c_str());
  std::printf(
      "%s batches in %s: %s samples/s, %s, %s batches/s\n", Count(batches_).c_str(),
      Duration(number("seconds")).c_str(), Count(static_cast<uint64_t>(number("samples_per_second"))).c_str(),
      ByteRate(number("gigabytes_per_second") * 1e9).c_str(), Fixed(number("batches_per_second"), 1).c_str());
  if (number("seconds") < kShortSeconds) {
    std::puts(
        "too short for a rate: batches may have been filled before the measuring began; raise --batches or "
        "--seconds");
  }
  std::printf("waited %s of the time; %s batches were ready at once\n", Percent(number("wait_share")).c_str(),
              Count(ready_ns_.size()).c_str());
  const Json& ready = report["ready_ns"];
  if (!ready_ns_.empty()) {
    std::printf("hand-off of a ready batch: p50 %s, p90 %s, p99 %s, max %s\n", Micros(ready["p50"]).c_str(),
                Micros(ready["p90"]).c_str(), Micros(ready["p99"]).c_str(), Micros(ready["max"]).c_str());
  }
  if (feed_status_.is_null()) return;
  std::printf("bound on %s (%s of the feed's time); workers spent %s reading, %s decoding\n",
              Printable(TextField(feed_status_, "bound_on")).c_str(),
              Percent(DoubleField(feed_status_, "bound_share")).c_str(),
              Duration(DoubleField(feed_status_, "read_seconds")).c_str(),
              Duration(DoubleField(feed_status_, "decode_seconds")).c_str());
}

}  // namespace pinfeed
