// SPDX-License-Identifier: Apache-2.0
// Reads a TOML file as a flat list of keys, each with its line. Knows TOML, but not the valid keys.
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "server/config/config_keys.h"

namespace pinfeed {

struct ConfigFile {
  struct Entry {
    std::string key;
    ConfigValue value;
    std::string place;  // "pinfeed.toml:3"
  };
  struct Dataset {
    std::string name;
    std::string place;
    std::vector<Entry> entries;
  };
  std::vector<Entry> entries;
  std::vector<Dataset> datasets;
};

// Fails with the code of the I/O error when the file cannot be read. kInvalidArgument, with the place, when
// it is not TOML.
Result<ConfigFile> ReadConfigFile(const std::string& path);

}  // namespace pinfeed
