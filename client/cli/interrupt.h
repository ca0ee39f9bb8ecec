// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as something a command looks at, so that a feed is closed and a report still printed.
#pragma once

#include <optional>

#include "pinfeed/pinfeed.hpp"

namespace pinfeed {

struct Interrupted {};

// From now on SIGINT and SIGTERM only set a flag; a second one ends the process as usual.
void CatchInterrupts();
bool WasInterrupted();

// The next batch, however long it takes; nothing after the last epoch. Throws Interrupted.
std::optional<Batch> NextUnlessInterrupted(Feed& feed);

}  // namespace pinfeed
