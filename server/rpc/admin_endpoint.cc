// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/admin_endpoint.h"

#include <utility>

#include "server/net/listener.h"

namespace pinfeed {
namespace {

// Credit shared by all callers: a connection is charged before the TLS handshake identifies its client.
constexpr size_t kMaxConnections = 64;
constexpr std::chrono::seconds kBeginTimeout(5);  // including the handshake
// The cost of a handshake, which signs and verifies: about as much processor time as 400 other units.
constexpr uint32_t kPrice = 400;

}  // namespace

Result<std::unique_ptr<AdminEndpoint>> AdminEndpoint::Create(const std::string& listen,
                                                             const RpcServer::Services& services,
                                                             const AdminAccess& access,
                                                             PeerRegistry& connections, Refusals& refusals) {
  std::unique_ptr<AdminEndpoint> endpoint(new AdminEndpoint(access));
  Result<Listener> listener = Listener::CreateTcp(listen, refusals);
  if (!listener.ok()) {
    return Unavailable("listen for admins on " + listen + ": " + listener.status().message() +
                       "; is the port in use, and the address one of this host's? change admin_listen");
  }
  ASSIGN_OR_RETURN(endpoint->port_, listener->port());
  ASSIGN_OR_RETURN(endpoint->rpc_, RpcServer::CreateForNetwork(services));
  TlsServer& tls = endpoint->tls_;
  FrameGuard::Options options{"admin-guard",
                              kMaxConnections,
                              kBeginTimeout,
                              kPrice,
                              [&tls](UniqueFd socket) { return tls.Secure(std::move(socket)); },
                              [&tls](const TlsPeer& peer) { return tls.DenialReason(peer); }};
  ASSIGN_OR_RETURN(endpoint->guard_, FrameGuard::Create(
                                         std::move(*listener), connections,
                                         [rpc = endpoint->rpc_.get()](UniqueFd connection) {
                                           rpc->Serve(std::move(connection));
                                         },
                                         refusals, std::move(options)));
  return endpoint;
}

void AdminEndpoint::Stop(std::chrono::milliseconds grace) {
  guard_->StopAccepting();
  guard_->HangUpAt(std::chrono::steady_clock::now() + 2 * grace);
  rpc_->Stop(grace);
  guard_->Stop();
}

}  // namespace pinfeed
