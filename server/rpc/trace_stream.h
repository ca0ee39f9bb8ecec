// SPDX-License-Identifier: Apache-2.0
// One call of Admin.Trace. In: messages. Out: the same on the wire, one at a time.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <optional>

#include "common/base/sync.h"
#include "pinfeed/v1/admin.pb.h"

namespace pinfeed {

// Purpose: lets one thread write to a call as to a file. Owns itself: gone some time after End, when gRPC is
// done with it. Threads: Write, Sleep and End by one thread, Interrupt by
// another, the rest by gRPC. Errors: false, once the caller
// is gone.
class TraceStream final : public grpc::ServerWriteReactor<v1::TraceResponse> {
 public:
  explicit TraceStream(grpc::CallbackServerContext& context) : context_(context) {}

  // Returns when it is sent; gives up, and the call with it, at the deadline.
  bool Write(const v1::TraceResponse& message, std::chrono::steady_clock::time_point deadline)
      PF_EXCLUDES(mutex_);
  // False: the caller is gone.
  bool SleepUntil(std::chrono::steady_clock::time_point time) PF_EXCLUDES(mutex_);
  // Another thread wants the stream's to come to its end: SleepUntil tells it, and a message that nobody
  // reads is given up soon. Before End only.
  void Interrupt() PF_EXCLUDES(mutex_);
  bool interrupted() const PF_EXCLUDES(mutex_);
  // Last of all.
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
