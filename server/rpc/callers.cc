// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/callers.h"

#include <grpcpp/server_context.h>

#include <string_view>
#include <utility>

#include "common/quote.h"
#include "server/rpc/admin_credentials.h"

namespace pinfeed {

std::string Describe(const Caller& caller) {
  return caller.remote() ? "admin " + QuotePath(caller.admin) : Describe(caller.peer);
}

Result<Caller> Callers::Find(const grpc::CallbackServerContext& context, const char* what) const {
  const std::string name = context.peer();
  if (const std::optional<Peer> peer = peers_.Find(name)) return Caller{*peer, {}};
  if (access_ == nullptr || std::string_view(name).substr(0, 3) == "fd:")
    return Internal(std::string(what) + ": the connection's credentials are not on record");
  std::optional<std::string> admin = AdminOf(*context.auth_context(), *access_);
  if (!admin)
    return PermissionDenied(std::string(what) + ": this certificate is not in admin_clients any more");
  return Caller{{.pid = 0, .uid = kRemoteUser, .gid = 0}, std::move(*admin)};
}

}  // namespace pinfeed
