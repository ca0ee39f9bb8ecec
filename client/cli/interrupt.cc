// SPDX-License-Identifier: Apache-2.0
#include "client/cli/interrupt.h"

#include <csignal>

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kLookAgain{100};

volatile std::sig_atomic_t g_interrupted = 0;

void OnSignal(int /*signal*/) {
  g_interrupted = 1;
}

}  // namespace

void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool WasInterrupted() {
  return g_interrupted != 0;
}

std::optional<Batch> NextUnlessInterrupted(Feed& feed, std::chrono::steady_clock::time_point until) {
  for (;;) {
    if (WasInterrupted()) throw Interrupted();
    if (std::chrono::steady_clock::now() >= until) return std::nullopt;
    try {
      return feed.Next(kLookAgain);
    } catch (const Error& error) {
      if (error.code() != PF_DEADLINE_EXCEEDED) throw;
    }
  }
}

}  // namespace pinfeed
