// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/callers.h"

#include <grpcpp/server_context.h>

#include <optional>
#include <utility>

#include "common/base/quote.h"

namespace pinfeed {

std::string Describe(const Caller& caller) {
  return caller.remote() ? "admin " + QuotePath(caller.admin) : Describe(caller.peer);
}

Result<Caller> Callers::Find(const grpc::CallbackServerContext& context, const char* what) const {
  const std::optional<PeerRegistry::Connection> connection = peers_.Find(context.peer());
  if (!connection) return Internal(std::string(what) + ": the connection's credentials are not on record");
  if (connection->peer.uid != kRemoteUser) return Caller{connection->peer, {}};
  std::optional<std::string> admin;
  if (access_ != nullptr) admin = access_->Admit(connection->names);
  if (!admin) return PermissionDenied(std::string(what) + ": this certificate is no longer in admin_clients");
  return Caller{{.pid = 0, .uid = kRemoteUser, .gid = 0}, std::move(*admin)};
}

}  // namespace pinfeed
