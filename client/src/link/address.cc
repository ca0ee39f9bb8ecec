// SPDX-License-Identifier: Apache-2.0
#include "client/src/link/address.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "common/base/quote.h"
#include "common/os/tcp_address.h"
#include "common/os/unix_address.h"

namespace pinfeed {
namespace {

constexpr std::string_view kScheme = "unix:";

bool IsSet(const char* text) {
  return text != nullptr && *text != '\0';
}

}  // namespace

Result<std::string> ResolveAddress(const char* given) {
  const char* environment = std::getenv("PINFEED_ADDRESS");
  std::string_view path = kDefaultAddress;
  std::string_view origin = "the default address";
  if (IsSet(given)) {
    path = given;
    origin = "the address given";
  } else if (IsSet(environment)) {
    path = environment;
    origin = "$PINFEED_ADDRESS";
  }
  const std::string whole(path);
  const bool named_unix = path.substr(0, kScheme.size()) == kScheme;
  if (named_unix) path.remove_prefix(kScheme.size());
  if (IsTcpAddress(path)) return named_unix ? "./" + std::string(path) : std::string(path);
  if (path.empty())
    return InvalidArgument(std::string(origin) + " '" + whole +
                           "' names no socket; give the path of pinfeedd's socket");
  if (path.size() > kMaxSocketPath) {
    return InvalidArgument(std::string(origin) + " '" + whole + "' has " + std::to_string(path.size()) +
                           " bytes; the path of a Unix socket has at most " + std::to_string(kMaxSocketPath));
  }
  return std::string(path);
}

Result<std::string> ResolveLocalAddress(const char* given, std::string_view what) {
  ASSIGN_OR_RETURN(std::string address, ResolveAddress(given));
  if (!IsTcpAddress(address)) {
    std::error_code error;
    std::string absolute = std::filesystem::absolute(address, error).string();
    return error || absolute.size() > kMaxSocketPath ? address : absolute;
  }
  return InvalidArgument(std::string(what) + ": not over TCP (" + QuotePath(address) +
                         "), since batches are memory of the daemon's host; run there, with the path of its "
                         "socket");
}

}  // namespace pinfeed
