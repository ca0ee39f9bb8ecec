// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/admin_endpoint.h"

#include <utility>

#include "common/unique_handle.h"
#include "server/rpc/admin_credentials.h"
#include "server/session/listener.h"

namespace pinfeed {
namespace {

// Of all callers together: whoever reaches the port counts before the handshake tells who it is.
constexpr size_t kMaxConnections = 64;

}  // namespace

Result<std::unique_ptr<AdminEndpoint>> AdminEndpoint::Create(const std::string& listen,
                                                             const RpcServer::Services& services,
                                                             const AdminAccess& access, Refusals& refusals) {
  std::unique_ptr<AdminEndpoint> endpoint(new AdminEndpoint());
  Result<Listener> listener = Listener::CreateTcp(listen, refusals);
  if (!listener.ok()) {
    return Unavailable("listen for admins on " + listen + ": " + listener.status().message() +
                       "; is the port in use, and the address one of this host's? change admin_listen");
  }
  ASSIGN_OR_RETURN(endpoint->port_, listener->port());
  ASSIGN_OR_RETURN(endpoint->rpc_, RpcServer::CreateForNetwork(services, endpoint->connections_, refusals,
                                                               MakeAdminCredentials(access, refusals)));
  ASSIGN_OR_RETURN(endpoint->acceptor_, Acceptor::Create(
                                            std::move(*listener), endpoint->connections_, refusals,
                                            [rpc = endpoint->rpc_.get()](UniqueFd connection) {
                                              rpc->Serve(std::move(connection));
                                            },
                                            kMaxConnections));
  return endpoint;
}

void AdminEndpoint::Stop(std::chrono::milliseconds grace) {
  acceptor_->Stop();
  rpc_->Stop(grace);
}

}  // namespace pinfeed
