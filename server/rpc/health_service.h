// SPDX-License-Identifier: Apache-2.0
// The standard gRPC health service. In: whether the daemon serves, and its sessions. Out: a status per name.
// "", "pinfeed.v1.Feeder" and "pinfeed.v1.Admin" name the daemon; "pinfeed.feed.<session id>" names a
// session.
#pragma once

#include <atomic>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/session/session_table.h"

namespace pinfeed {

// Purpose: answers health probes. gRPC's own implementation never drops a name, but sessions come and go.
// Borrows: the sessions (outlive it). Threads: any. Errors: kNotFound for unknown names. Invariant: outlives
// the gRPC server.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  using Request = grpc::health::v1::HealthCheckRequest;
  using Response = grpc::health::v1::HealthCheckResponse;

  explicit HealthService(const SessionTable& sessions) : sessions_(sessions) {}

  // Sets the daemon's own status.
  void SetServing(bool serving) { serving_ = serving; }
  // Ends each Watch call at its next check.
  void Close() { closed_ = true; }

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const Request* request,
                                  Response* response) override;
  grpc::ServerWriteReactor<Response>* Watch(grpc::CallbackServerContext* context,
                                            const Request* request) override;

 private:
  class Watcher;
  // Returns SERVICE_UNKNOWN for an unknown name.
  Response::ServingStatus StatusOf(const std::string& name) const;

  const SessionTable& sessions_;
  std::atomic<bool> serving_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace pinfeed
