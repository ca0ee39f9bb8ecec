// SPDX-License-Identifier: Apache-2.0
// Compares a reloaded configuration with the one in force. In: both. Out: the next one in force, and the
// changes that need a restart.
#pragma once

#include <string>
#include <vector>

#include "server/config/config.h"

namespace pinfeed {

// The result of a reload: see ReloadResponse.
struct ReloadReport {
  std::vector<std::string> changed;
  std::vector<std::string> need_restart;
  std::vector<std::string> warnings;
};

struct Reload {
  CommandLine next;                       // live keys from `loaded`, the others from `running`
  std::vector<std::string> changed;       // "log_level = \"debug\"", "datasets.train: added", ...
  std::vector<std::string> need_restart;  // the same, with the value that stays in force
};

Reload MergeReloaded(const CommandLine& running, const CommandLine& loaded);

// Whether a change of the key takes effect without a restart.
bool IsLive(const std::string& key);

}  // namespace pinfeed
