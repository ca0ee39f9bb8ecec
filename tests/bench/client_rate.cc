// SPDX-License-Identifier: Apache-2.0
// A C++ trainer that does nothing with its batches. In: a daemon's socket and a feed's spec. Out: one JSON
// line with how fast they come (rate), or how long taking a batch that is ready takes (latency).
//
//   client_rate SOCKET SPEC_JSON rate WARM_BATCHES SECONDS
//   client_rate SOCKET SPEC_JSON latency WARM_BATCHES BATCHES
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "pinfeed/pinfeed.hpp"

namespace {

using Clock = std::chrono::steady_clock;

// What a trainer has to know of a batch: each tensor's address. Returns something that depends on all, lest
// they be optimised away.
uintptr_t Touch(const pinfeed::Batch& batch, uint32_t tensors) {
  uintptr_t sum = 0;
  for (uint32_t i = 0; i < tensors; ++i) sum += reinterpret_cast<uintptr_t>(batch[i].data());
  return sum;
}

int Rate(pinfeed::Feed& feed, double seconds) {
  const uint32_t tensors = feed.Info().tensor_count;
  uint64_t count = 0;
  uintptr_t sum = 0;
  const auto begin = Clock::now();
  std::chrono::duration<double> elapsed{};
  while (elapsed.count() < seconds) {
    const auto batch = feed.Next();
    if (!batch) break;
    sum += Touch(*batch, tensors);
    ++count;
    elapsed = Clock::now() - begin;
  }
  std::printf("{\"count\": %llu, \"seconds\": %.6f, \"touched\": %d}\n",
              static_cast<unsigned long long>(count), elapsed.count(), sum != 0);
  return 0;
}

int Latency(pinfeed::Feed& feed, uint64_t batches) {
  const uint32_t tensors = feed.Info().tensor_count;
  std::vector<double> micros;
  uint64_t not_ready = 0;
  uintptr_t sum = 0;
  while (micros.size() < batches && not_ready < batches) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1));  // a step of the trainer; the daemon fills its slots meanwhile
    const auto begin = Clock::now();
    pf_batch* raw = nullptr;
    // With time 0 the call succeeds only when it need not wait.
    const pf_result result = pf_next(feed.get(), 0, &raw);
    if (result == PF_DEADLINE_EXCEEDED) {
      ++not_ready;
      continue;
    }
    pinfeed::detail::Check(result);
    const pinfeed::Batch batch(raw);
    sum += Touch(batch, tensors);
    micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  if (micros.empty()) {
    std::fputs("client_rate: no batch was ready when it was asked for\n", stderr);
    return 1;
  }
  std::sort(micros.begin(), micros.end());
  const auto at = [&](double share) {
    return micros[static_cast<size_t>(share * static_cast<double>(micros.size() - 1))];
  };
  std::printf("{\"p50\": %.3f, \"p99\": %.3f, \"ready\": %zu, \"not_ready\": %llu, \"touched\": %d}\n",
              at(0.5), at(0.99), micros.size(), static_cast<unsigned long long>(not_ready), sum != 0);
  return 0;
}

int Run(const std::vector<std::string>& arguments) {
  const pinfeed::FeedOptions options{.address = arguments[0], .client_name = "client_rate"};
  pinfeed::Feed feed(arguments[1], options);
  for (int left = std::stoi(arguments[3]); left > 0; --left) {
    if (!feed.Next()) break;
  }
  if (arguments[2] == "rate") return Rate(feed, std::stod(arguments[4]));
  return Latency(feed, std::stoull(arguments[4]));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: client_rate SOCKET SPEC_JSON rate|latency WARM_BATCHES SECONDS|BATCHES\n", stderr);
    return 2;
  }
  try {
    return Run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "client_rate: %s\n", error.what());
    return 1;
  }
}
