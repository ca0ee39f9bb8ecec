// SPDX-License-Identifier: Apache-2.0
// A reload's look at the host. In: how to read the configuration, and the one in force. Out: all that a new
// one names, as far as the daemon takes it at a reload.
#pragma once

#include <functional>

#include "common/base/result.h"
#include "server/config/config.h"
#include "server/daemon/reloader.h"

namespace pinfeed {

// Reads the configuration again, from wherever the first one came. Any thread may call it.
using ReadConfig = std::function<Result<CommandLine>()>;

// Blocks as long as the storage does of the configuration, of the admin endpoint's files, and of new allowed
// roots and datasets. The errors of the first two, each with its place.
Result<LoadedConfig> LoadConfig(const ReadConfig& read, const CommandLine& running,
                                const Reloader::AtStep& at);

}  // namespace pinfeed
