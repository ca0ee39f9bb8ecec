// SPDX-License-Identifier: Apache-2.0
// Handles Ctrl-C as a flag, so that a command can close its feed and print its report.
#pragma once

#include <chrono>
#include <optional>

#include "pinfeed/pinfeed.hpp"

namespace pinfeed {

struct Interrupted {};

// After this, the first SIGINT or SIGTERM only sets a flag; a second one ends the process as usual.
void CatchInterrupts();
bool WasInterrupted();

// Returns the next batch; nothing after the last epoch, or if none has come by `until`. Throws Interrupted.
std::optional<Batch> NextUnlessInterrupted(
    Feed& feed, std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max());

}  // namespace pinfeed
