// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/health_service.h"

#include <grpcpp/alarm.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/parse_number.h"
#include "common/base/quote.h"
#include "server/rpc/grpc_status.h"

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kHealthCheckInterval(200);
constexpr std::string_view kFeedPrefix = "pinfeed.feed.";

// Parses N of "pinfeed.feed.N", in canonical form only.
std::optional<uint64_t> FeedNumber(const std::string& name) {
  if (!name.starts_with(kFeedPrefix)) return std::nullopt;
  const std::string_view number = std::string_view(name).substr(kFeedPrefix.size());
  return number.starts_with('0') ? std::nullopt : ParseNumber<uint64_t>(number);
}

}  // namespace

HealthService::Response::ServingStatus HealthService::StatusOf(const std::string& name) const {
  if (name.empty() || name == "pinfeed.v1.Feeder" || name == "pinfeed.v1.Admin")
    return serving_ ? Response::SERVING : Response::NOT_SERVING;
  const std::optional<uint64_t> id = FeedNumber(name);
  const std::shared_ptr<Session> session = id ? sessions_.Find(*id) : nullptr;
  if (session == nullptr) return Response::SERVICE_UNKNOWN;
  const bool served = !HasLeft(*session) && session->feed->Serves();
  return served ? Response::SERVING : Response::NOT_SERVING;
}

// Purpose: one Watch call: checks, sends a changed status, sleeps, repeats. Owns: itself, until gRPC's
// OnDone. Threads: steps run one after another, on any of gRPC's threads; OnCancel may run between them.
class HealthService::Watcher final : public grpc::ServerWriteReactor<Response> {
 public:
  Watcher(const HealthService& health, std::string name) : health_(health), name_(std::move(name)) {
    CheckStatus();
  }

 private:
  void CheckStatus() {
    { const MutexLock lock(mutex_); }  // waits until Sleep, which scheduled this step, has returned
    if (gone_) return Finish(grpc::Status::CANCELLED);
    if (health_.closed_) return Finish(ToGrpc(Unavailable("the daemon is stopping")));
    const Response::ServingStatus status = health_.StatusOf(name_);
    if (sent_ && status == response_.status()) return Sleep();
    sent_ = true;
    response_.set_status(status);
    StartWrite(&response_);
  }
  void Sleep() {
    const MutexLock lock(mutex_);
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + kHealthCheckInterval,
                [this](bool /*expired*/) { CheckStatus(); });
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    Sleep();
  }
  void OnCancel() override { gone_ = true; }
  void OnDone() override { delete this; }

  const HealthService& health_;
  const std::string name_;
  Response response_;
  bool sent_ = false;
  std::atomic<bool> gone_{false};
  Mutex mutex_;
  std::unique_ptr<grpc::Alarm> alarm_ PF_GUARDED_BY(mutex_);
};

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context, const Request* request,
                                               Response* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  response->set_status(StatusOf(request->service()));
  reactor->Finish(response->status() != Response::SERVICE_UNKNOWN
                      ? grpc::Status::OK
                      : ToGrpc(NotFound("health: there is no service " + QuotePath(request->service()))));
  return reactor;
}

grpc::ServerWriteReactor<HealthService::Response>* HealthService::Watch(
    grpc::CallbackServerContext* /*context*/, const Request* request) {
  return new Watcher(*this, request->service());  // NOLINT(cppcoreguidelines-owning-memory): see Watcher
}

}  // namespace pinfeed
