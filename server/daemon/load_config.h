// SPDX-License-Identifier: Apache-2.0
// Loads a configuration for a reload. In: how to read it, and the configuration in force. Out: the new
// configuration and the files that it names, as far as a reload can apply them.
#pragma once

#include <functional>

#include "common/base/result.h"
#include "server/config/config.h"
#include "server/daemon/reloader.h"

namespace pinfeed {

// Reads the configuration again from its original source. Callable from any thread.
using ReadConfig = std::function<Result<CommandLine>()>;

// Blocks while the storage of the configuration, the admin endpoint's files, new allowed roots or new
// datasets does not answer. Fails for errors in the first two; each error names its origin.
Result<LoadedConfig> LoadConfig(const ReadConfig& read, const CommandLine& running,
                                const Reloader::AtStep& at);

}  // namespace pinfeed
