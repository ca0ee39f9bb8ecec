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
  Action action = Action::kRun;
  std::string text;  // kPrintAndExit
  std::string config_file;
  bool private_mode = false;
  int lifetime_fd = -1;
  int ready_fd = -1;
  std::map<std::string, std::string> values;  // key -> text
};

// `arguments` excludes the program's name. kInvalidArgument for an unknown flag or a missing value.
Result<Flags> ParseFlags(const std::vector<std::string>& arguments);

}  // namespace pinfeed
