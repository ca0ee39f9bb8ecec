// SPDX-License-Identifier: Apache-2.0
// The standard health service. In: whether the daemon takes feeds, and its sessions. Out: an answer for each
// name: "", "pinfeed.v1.Feeder" and "pinfeed.v1.Admin" are the daemon's, "pinfeed.feed.<session id>" a
// session's.
#pragma once

#include <atomic>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/session/session_table.h"

namespace pinfeed {

// Purpose: answers probes. gRPC's own service keeps each name for ever, and sessions come and go. Borrows:
// the sessions (outlive it). Threads: any. Errors: kNotFound for names that there are not. Invariant:
// outlives the gRPC server.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  using Request = grpc::health::v1::HealthCheckRequest;
  using Response = grpc::health::v1::HealthCheckResponse;

  explicit HealthService(const SessionTable& sessions) : sessions_(sessions) {}

  // Of the daemon.
  void SetServing(bool serving) { serving_ = serving; }
  // Ends the watches, each at its next look.
  void Close() { closed_ = true; }

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const Request* request,
                                  Response* response) override;
  grpc::ServerWriteReactor<Response>* Watch(grpc::CallbackServerContext* context,
                                            const Request* request) override;

 private:
  class Watcher;
  // SERVICE_UNKNOWN for a name that there is not.
  Response::ServingStatus StatusOf(const std::string& name) const;

  const SessionTable& sessions_;
  std::atomic<bool> serving_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace pinfeed
