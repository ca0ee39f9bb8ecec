// SPDX-License-Identifier: Apache-2.0
// One Admin.Trace call. In: messages. Out: the same messages on the wire, one at a time.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <optional>

#include "common/base/sync.h"
#include "pinfeed/v1/admin.pb.h"

namespace pinfeed {

// Purpose: lets one thread write to a call as to a file. Owns: itself; gRPC deletes it some time after End.
// Threads: Write, SleepUntil and End by one thread, Interrupt by another, the rest by gRPC. Errors: false
// once the caller is gone.
class TraceStream final : public grpc::ServerWriteReactor<v1::TraceResponse> {
 public:
  explicit TraceStream(grpc::CallbackServerContext& context) : context_(context) {}

  // Returns once the message is sent. At the deadline it cancels the call.
  bool Write(const v1::TraceResponse& message, std::chrono::steady_clock::time_point deadline)
      PF_EXCLUDES(mutex_);
  // Returns false if the caller is gone or the stream was interrupted.
  bool SleepUntil(std::chrono::steady_clock::time_point time) PF_EXCLUDES(mutex_);
  // Asks the writing thread to end the trace: SleepUntil returns false, and an unread message is given up
  // soon. Precondition: End was not called.
  void Interrupt() PF_EXCLUDES(mutex_);
  bool interrupted() const PF_EXCLUDES(mutex_);
  // No other call may follow.
  void End(const grpc::Status& status) { Finish(status); }

 private:
  void OnWriteDone(bool ok) override PF_EXCLUDES(mutex_);
  void OnCancel() override PF_EXCLUDES(mutex_);
  void OnDone() override { delete this; }

  grpc::CallbackServerContext& context_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool writing_ PF_GUARDED_BY(mutex_) = false;
  bool gone_ PF_GUARDED_BY(mutex_) = false;
  std::optional<std::chrono::steady_clock::time_point> interrupted_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
