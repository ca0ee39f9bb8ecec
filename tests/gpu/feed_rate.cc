// SPDX-License-Identifier: Apache-2.0
// How fast a trainer process gets batches into tensors of its own on the GPU.
//
//   feed_rate ADDRESS SECONDS SPEC_JSON [CALLS | drop | together]
//
// With "drop", batches are given back untouched by the processor: once it has printed "started", this process
// puts nothing on the GPU. It then goes on until its standard input ends, SECONDS at most.
// With "together", it prints "started" once batches come, and measures from a line of its standard input on,
// so that several processes measure the same seconds. It takes no batches apart.
//
// Prints one JSON object: batches and bytes (of the tensors) a second over SECONDS, and percentiles of the
// time from a ready batch to a tensor whose work is queued (pf_next and pf_batch_write, in microseconds),
// taken apart, CALLS times (1000), with pauses in which the feed gets ahead.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "tests/gpu/trainer.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// The stream may run at most this many batches behind, as a training loop's does.
constexpr int kBatchesBehind = 8;

bool InputEnded() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) != 0;
}

}  // namespace
}  // namespace pinfeed

int main(int argc, char** argv) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): a program's main file
  const std::string mode = argc == 5 ? argv[4] : "";
  const bool drop = mode == "drop";
  const bool together = mode == "together";
  const int calls = argc == 4 ? 1000 : std::atoi(mode.c_str());
  if (calls <= 0 && !drop && !together) {
    std::fprintf(stderr, "usage: %s ADDRESS SECONDS SPEC_JSON [CALLS | drop | together]\n", argv[0]);
    return 2;
  }
  const double seconds = std::atof(argv[2]);
  TrainerGpu gpu;
  const auto opened = Clock::now();
  TrainerFeed feed(argv[1], argv[3], &gpu);
  feed.Next();
  gpu.Synchronize();
  const double first_ms = Microseconds(Clock::now() - opened) / 1000;
  uint64_t sample_bytes = 0;
  for (size_t i = 0; i < feed.outputs().size(); ++i) sample_bytes += feed.SampleBytes(i);
  for (int i = 0; i < 50; ++i) feed.Next();
  gpu.Synchronize();

  if (drop || together) {
    std::printf("started\n");
    std::fflush(stdout);
  }
  if (together) (void)std::getchar();

  uint64_t batches = 0;
  uint64_t samples = 0;
  const auto start = Clock::now();
  while (Clock::now() - start < std::chrono::duration<double>(seconds) && !(drop && InputEnded())) {
    for (int i = 0; i < kBatchesBehind; ++i) samples += drop ? feed.Drop() : feed.Next().samples;
    batches += kBatchesBehind;
    if (!drop) gpu.Synchronize();
  }
  const double took = Microseconds(Clock::now() - start) * 1e-6;

  std::vector<double> taken;
  for (int i = 0; i < calls; ++i) {
    // What is measured is a batch that is ready, of a trainer that is awake.
    for (const auto until = Clock::now() + std::chrono::milliseconds(2); Clock::now() < until;) {
    }
    const auto before = Clock::now();
    feed.Next();
    taken.push_back(Microseconds(Clock::now() - before));
    gpu.Synchronize();
  }
  if (taken.empty()) taken.push_back(0);
  std::sort(taken.begin(), taken.end());
  std::printf(
      "{\"first_batch_ms\": %.2f, \"batches_per_s\": %.1f, \"samples_per_s\": %.1f, \"gb_per_s\": %.3f, "
      "\"p50_us\": %.2f, "
      "\"p99_us\": %.2f}\n",
      first_ms, static_cast<double>(batches) / took, static_cast<double>(samples) / took,
      static_cast<double>(samples * sample_bytes) / took * 1e-9, taken[taken.size() / 2],
      taken[taken.size() * 99 / 100]);
  return 0;
}
