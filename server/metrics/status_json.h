// SPDX-License-Identifier: Apache-2.0
// Exports the snapshot as JSON, for the live page and other HTTP clients.
#pragma once

#include <string>

#include "server/metrics/snapshot.h"

namespace pinfeed {

// Always valid UTF-8, even for malformed names. HTTP does not authenticate users, so the result leaves out
// what not every user of the host may see: paths, error texts and sample names. GetStatus includes them.
std::string StatusJson(const DaemonSnapshot& snapshot);

}  // namespace pinfeed
