// SPDX-License-Identifier: Apache-2.0
// The snapshot as JSON, for the live page and whoever else asks over HTTP.
#pragma once

#include <string>

#include "server/metrics/snapshot.h"

namespace pinfeed {

// Valid UTF-8, whatever names hold. HTTP knows no users, so it leaves out what not everybody on this host may
// see: paths, error texts, names of samples. GetStatus has them.
std::string StatusJson(const DaemonSnapshot& snapshot, const std::string& version);

}  // namespace pinfeed
