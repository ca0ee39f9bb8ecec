// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/private_daemons.h"
#include "common/unique_handle.h"

namespace pinfeed {
namespace {

constexpr char kSystemSocket[] = "/run/pinfeed/pinfeed.sock";

bool Answers(const char* path) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  // A queue that is full (EAGAIN) is one of a daemon that is there.
  return ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
         errno == EAGAIN;
}

bool IsNamed(const ToolContext& context) {
  const char* const environment = std::getenv("PINFEED_ADDRESS");
  return !context.address.empty() || (environment != nullptr && *environment != '\0');
}

}  // namespace

std::vector<PrivateDaemon> ChooseDaemon(ToolContext& context) {
  if (IsNamed(context)) return {};
  std::vector<PrivateDaemon> daemons = FindPrivateDaemons(::geteuid());
  if (daemons.empty() || Answers(kSystemSocket)) return daemons;
  if (daemons.size() > 1) {
    std::string listed = std::string("no daemon answers at ") + kSystemSocket + ", and " +
                         std::to_string(daemons.size()) + " trainers have a private one; name one of them:";
    for (const PrivateDaemon& daemon : daemons) listed += "\n  " + Describe(daemon);
    throw ToolError(listed);
  }
  std::fprintf(stderr, "pinfeed: no daemon answers at %s; this is the private one of %s\n", kSystemSocket,
               Describe(daemons.front()).c_str());
  context.address = daemons.front().address;
  return {};
}

}  // namespace pinfeed
