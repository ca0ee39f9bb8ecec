// SPDX-License-Identifier: Apache-2.0
// What a connection between a client and gRPC needs from the guard that owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/os/foreign_fds.h"

namespace pinfeed {

// Purpose: decides what one connection may do, and charges it to the client's user. Threads: the guard's.
class ConnectionOwner {
 public:
  // Returns false if the connection was queued; GuardedConnection::OnCreditGranted is then called later.
  virtual bool RequestCredit(uint32_t cost) = 0;
  // Connects to gRPC and returns the guard's end of the socket pair; null on failure.
  virtual UniqueConnection ConnectToServer() = 0;
  // Returns why the client may not call; empty if it may. Called once TLS has identified the client, and
  // for each call.
  virtual std::string DenialReason() = 0;
  // Counts a call that was answered with this denial.
  virtual void CountDenial(const std::string& why) = 0;
  // Counts a new call, the `of_connection`th open one of its connection. Returns why it is refused; empty
  // if it is allowed.
  virtual std::string AdmitCall(size_t of_connection) = 0;
  // Counts bytes of an open call's messages, which gRPC keeps until the call ends. Returns like AdmitCall.
  virtual std::string AdmitMessage(uint64_t bytes) = 0;
  // `message_bytes`: all that were counted of the call.
  virtual void ReleaseCall(uint64_t message_bytes) = 0;

 protected:
  ~ConnectionOwner() = default;
};

}  // namespace pinfeed
