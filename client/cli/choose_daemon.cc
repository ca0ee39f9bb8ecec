// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/private_daemons.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

constexpr char kSystemSocket[] = "/run/pinfeed/pinfeed.sock";

// Whether a system-wide daemon runs and serves this user.
bool IsServed() {
  try {
    StatusJson(kSystemSocket);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool EnvironmentNamesDaemon() {
  const char* const address = std::getenv("PINFEED_ADDRESS");
  return address != nullptr && *address != '\0';
}

std::vector<PrivateDaemon> ChooseDaemon(ToolContext& context) {
  if (!context.address.empty() || EnvironmentNamesDaemon()) return {};
  std::vector<PrivateDaemon> daemons = FindPrivateDaemons(::geteuid());
  if (daemons.empty() || IsServed()) return daemons;
  if (daemons.size() > 1) {
    std::string listed = std::string("no daemon serves you at ") + kSystemSocket + ", and " +
                         std::to_string(daemons.size()) + " private ones run; choose with --address:";
    for (const PrivateDaemon& daemon : daemons) listed += "\n  " + Describe(daemon);
    throw ToolError(listed);
  }
  std::fprintf(stderr, "pinfeed: no daemon serves you at %s; this is the private one of %s\n", kSystemSocket,
               Describe(daemons.front()).c_str());
  context.address = daemons.front().address;
  return {};
}

}  // namespace pinfeed
