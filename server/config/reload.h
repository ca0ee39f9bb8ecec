// SPDX-License-Identifier: Apache-2.0
// A changed configuration against the one in force. In: both. Out: what is in force next, and what has to
// wait for a restart.
#pragma once

#include <string>
#include <vector>

#include "server/config/config.h"

namespace pinfeed {

// What a reload did: see ReloadResponse.
struct ReloadReport {
  std::vector<std::string> changed;
  std::vector<std::string> need_restart;
  std::vector<std::string> warnings;
};

struct Reload {
  CommandLine next;                  // what can change without a restart is `loaded`'s, the rest `running`'s
  std::vector<std::string> changed;  // "log_level = \"debug\"", "datasets.train: added", ...
  std::vector<std::string> need_restart;  // likewise, with the value that stays
};

Reload MergeReloaded(const CommandLine& running, const CommandLine& loaded);

// Whether a change of the key takes effect without a restart.
bool IsLive(const std::string& key);

}  // namespace pinfeed
