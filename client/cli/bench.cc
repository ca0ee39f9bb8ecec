// SPDX-License-Identifier: Apache-2.0
// `pinfeed bench`: drains a feed and reports its rate, its hand-off latency and what it was bound on.
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "client/cli/bench_report.h"
#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/json_field.h"
#include "client/cli/progress.h"
#include "client/cli/spec_options.h"
#include "client/cli/text.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kBenchClient[] = "pinfeed bench";
constexpr double kLeastSeconds = 0.001;
constexpr double kMaxSeconds = 1e9;
constexpr double kMaxStepMs = 1e6;
constexpr double kMaxOrdinal = 1e6;

struct BenchOptions {
  SpecOptions spec;
  double seconds = 10;
  uint64_t batches = 0;  // 0: no limit
  double step_ms = 0;
  int device = -1;  // -1: host memory
  bool json = false;
};

uint64_t NanosecondsSince(Clock::time_point start) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

void ShowProgress(const BenchReport& report, const BenchOptions& options, double seconds, ProgressBar& bar) {
  const auto batches = static_cast<double>(report.batches());
  const double of_batches = options.batches == 0 ? 0 : batches / static_cast<double>(options.batches);
  const auto rate = static_cast<uint64_t>(static_cast<double>(report.samples()) / std::max(seconds, 1e-9));
  bar.Show(std::max(seconds / options.seconds, of_batches),
           Duration(seconds) + "  " + Count(report.batches()) + " batches  " + Count(rate) + " samples/s");
}

// Returns a batch if one is ready now.
std::optional<Batch> NextIfReady(Feed& feed, bool* ended) {
  pf_batch* batch = nullptr;
  const pf_result result = pf_next(feed.get(), 0, &batch);
  *ended = result == PF_OUT_OF_RANGE;
  if (result == PF_OK) return Batch(batch);
  if (result != PF_DEADLINE_EXCEEDED && !*ended) throw Error(result, pf_last_error());
  return std::nullopt;
}

// Of what a trainer gets.
uint64_t BatchBytes(const Batch& batch, const std::vector<TensorView>& outputs) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < outputs.size(); ++i) {
    const auto rows = static_cast<uint64_t>(std::max<int64_t>(1, outputs[i].raw().shape[0]));
    const uint64_t has =
        outputs[i].packed() ? static_cast<uint64_t>(batch.RowOffsets(i).back()) : batch.samples();
    bytes += has * (outputs[i].bytes() / rows);
  }
  return bytes;
}

void Drain(Feed& feed, const BenchOptions& options, BenchReport& report) {
  const std::vector<TensorView> outputs = feed.Outputs();
  const Clock::time_point start = Clock::now();
  const Clock::time_point until =
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  ProgressBar bar;
  while (Clock::now() < until && (options.batches == 0 || report.batches() < options.batches)) {
    if (WasInterrupted()) break;
    const Clock::time_point asked = Clock::now();
    bool ended = false;
    std::optional<Batch> batch = NextIfReady(feed, &ended);
    const bool was_ready = batch.has_value();
    const uint64_t took_ready = NanosecondsSince(asked);
    if (!was_ready && !ended) batch = NextUnlessInterrupted(feed, until);
    if (!batch) break;
    report.Add(batch->samples(), BatchBytes(*batch, outputs),
               was_ready ? took_ready : NanosecondsSince(asked), was_ready);
    if (options.step_ms > 0)
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(options.step_ms));
    if (bar.IsDue())
      ShowProgress(report, options, std::chrono::duration<double>(Clock::now() - start).count(), bar);
  }
  bar.Clear();
  report.SetElapsed(NanosecondsSince(start));
}

void RunBench(const BenchOptions& options, ToolContext& context) {
  const Json given = options.spec.Spec();
  if (options.device < 0 && given.value("decode", Json()) == "DECODE_GPU")
    throw UsageError("a GPU is to decode: say which one with --device, such as --device 0");
  const std::string spec = SpecText(given);
  FeedOptions feed_options;
  feed_options.address = context.address;
  feed_options.device = options.device;
  feed_options.client_name = kBenchClient;
  const Clock::time_point asked = Clock::now();
  Feed feed(spec, feed_options);
  const uint64_t open_ns = NanosecondsSince(asked);
  // The first batch always waits, so it is reported apart and excluded from the rates.
  if (!NextUnlessInterrupted(feed)) throw ToolError("the feed returned no batch");
  BenchReport report;
  report.SetOpened(open_ns, NanosecondsSince(asked));
  Drain(feed, options, report);
  report.SetFeedStatus(OwnFeed(Json::parse(StatusJson(context.address)), kBenchClient));
  if (options.json) {
    std::puts(report.ToJson().dump(2).c_str());
  } else {
    report.Print();
  }
  if (WasInterrupted()) context.exit_status = kExitInterrupted;
}

}  // namespace

void AddBenchCommand(CLI::App& tool, ToolContext& context) {
  CLI::App* command = tool.add_subcommand(
      "bench", "Drains a feed and reports samples/s, bytes/s, hand-off latency and what it is bound on.");
  const auto options = std::make_shared<BenchOptions>();
  options->spec.AddTo(*command);
  command->add_option("--seconds", options->seconds, "the longest run")
      ->capture_default_str()
      ->check(Within(kLeastSeconds, kMaxSeconds));
  command->add_option("--batches", options->batches, "the most batches; 0: no limit")->capture_default_str();
  command->add_option("--step-ms", options->step_ms, "how long to hold each batch, as a training step would")
      ->capture_default_str()
      ->check(Within(0, kMaxStepMs));
  command
      ->add_option("--device", options->device,
                   "the GPU (CUDA ordinal) that gets the batches, which are not written to tensors; default: "
                   "host memory")
      ->check(Within(0, kMaxOrdinal));
  command->add_flag("--json", options->json, "print the figures as JSON");
  command->callback([options, &context] { RunBench(*options, context); });
}

}  // namespace pinfeed
