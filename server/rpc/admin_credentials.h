// SPDX-License-Identifier: Apache-2.0
// AdminAccess as gRPC asks for it: at each handshake and each call.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>
#include <string>

#include "server/rpc/admin_access.h"
#include "server/telemetry/refusals.h"

namespace pinfeed {

// TLS 1.2 or later, with a client certificate of the CA. Calls of a name that is not on the list end with
// PERMISSION_DENIED, whatever their service, and are counted. Both outlive it.
std::shared_ptr<grpc::ServerCredentials> MakeAdminCredentials(const AdminAccess& access, Refusals& refusals);

// By which of its names whoever calls is on the list.
std::optional<std::string> AdminOf(const grpc::AuthContext& context, const AdminAccess& access);

}  // namespace pinfeed
