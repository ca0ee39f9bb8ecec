// SPDX-License-Identifier: Apache-2.0
// The parsed command line: the action, and the keys that it sets as unchecked text.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "server/config/config.h"

namespace pinfeed {

struct Flags {
  CommandLine command_line;                   // what no key sets
  std::map<std::string, std::string> values;  // key -> text
};

// `arguments` excludes the program's name. kInvalidArgument for an unknown flag or a missing value.
Result<Flags> ParseFlags(const std::vector<std::string>& arguments);

}  // namespace pinfeed
