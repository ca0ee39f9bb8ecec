// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <utility>
#include <vector>

#include "common/base/byte_size.h"
#include "common/base/log_context.h"
#include "common/base/quote.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/offer_message.h"
#include "server/rpc/open_feed_request.h"
#include "server/rpc/status_message.h"

namespace pinfeed {
namespace {

// The limit on waiting calls per user exceeds the usual max_sessions.
constexpr CallQueue::Bounds kCalls{.threads = 32, .running_a_user = 16, .waiting_a_user = 512};
// With many sessions a status takes milliseconds, so that users take turns, and no more than one processor.
constexpr CallQueue::Bounds kStatusCalls{.threads = 1, .running_a_user = 1, .waiting_a_user = SIZE_MAX};
// How long before its deadline a call that waits for a dataset is answered.
constexpr std::chrono::milliseconds kAnswerEarly(500);
constexpr std::chrono::hours kLongestDeadline(24 * 365);  // a longer deadline counts as none
// Of one user. gRPC keeps about five times as much.
constexpr uint64_t kMaxUnreadAnswerBytes = uint64_t{16} << 20;
// Smaller answers count for nothing: the calls of a user are limited.
constexpr uint64_t kSmallAnswerBytes = uint64_t{16} << 10;
// What a name takes in an answer besides its text, at least.
constexpr uint64_t kNameBytes = 48;
// How long a feed that was opened waits, on a thread for calls, for others' answers to be read: of many
// trainers that start together.
constexpr std::chrono::seconds kLongestWait(10);
// Of one user, parsed: the guard's limit counts what was sent, until the call is reset.
constexpr uint64_t kMaxParsedRequestBytes = uint64_t{32} << 20;

// Empty if the call has no trace context or a malformed one.
std::string TraceIdOf(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  if (metadata.count("traceparent") != 1) return {};
  const grpc::string_ref header = metadata.find("traceparent")->second;
  return pinfeed::TraceIdOf(std::string_view(header.data(), header.size())).value_or("");
}

// What makes the description of a feed large.
uint64_t BytesOfNames(const Feed& feed) {
  uint64_t bytes = 0;
  for (const std::string& name : feed.dataset().classes) bytes += kNameBytes + name.size();
  for (const auto& [name, why] : feed.dataset().left_out) bytes += kNameBytes + name.size() + why.size();
  for (const TensorPlace& place : feed.layout().tensors) bytes += kNameBytes + place.spec.name.size();
  return bytes;
}

}  // namespace

// Purpose: a call that is answered later, from any thread. Owns: itself; gRPC calls OnDone after its only
// Finish, which deletes it. Invariant: cancelled() is set when the client cancels or its deadline passes.
class FeederService::Call final : public grpc::ServerUnaryReactor {
 public:
  // `what` names the call in errors.
  Call(grpc::CallbackServerContext& context, const char* what)
      : context_(context), what_(what), deadline_(AnswerBy(context.deadline())) {}
  void OnCancel() override { *cancelled_ = true; }
  void OnDone() override { delete this; }

  void Fail(const Status& error) {
    if (error.code() == Code::kUnavailable) context_.AddTrailingMetadata(kStoppingKey, "1");
    Finish(ToGrpc(error));
  }
  // Until gRPC has passed the answer on. Returns whether there is something to hold.
  bool Hold(UserCounts::Counted counted) {
    if (counted == nullptr) return false;
    held_.push_back(std::move(counted));
    return true;
  }
  void set_caller(Caller caller) { caller_ = std::move(caller); }
  const Caller& caller() const { return caller_; }  // once it is admitted
  uid_t user() const { return caller_.peer.uid; }
  const grpc::CallbackServerContext& context() const { return context_; }
  const std::string& what() const { return what_; }
  bool cancelled() const { return *cancelled_; }
  // kCancelled once the call is cancelled.
  Status CheckWanted() const {
    return cancelled() ? Status(Code::kCancelled, what_ + ": the client cancelled the call") : OkStatus();
  }
  CallLimits limits() const { return {deadline_, cancelled_}; }

 private:
  // A little before the client's deadline, so that the answer with the reason arrives in time.
  static std::chrono::steady_clock::time_point AnswerBy(std::chrono::system_clock::time_point deadline) {
    const auto left = deadline - std::chrono::system_clock::now();
    if (left > kLongestDeadline) return std::chrono::steady_clock::time_point::max();
    const auto early = std::min<std::chrono::system_clock::duration>(kAnswerEarly, left / 4);
    return std::chrono::steady_clock::now() + (left - early);
  }
  grpc::CallbackServerContext& context_;  // gRPC's, until OnDone
  const std::string what_;
  Caller caller_;
  const std::chrono::steady_clock::time_point deadline_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  std::vector<UserCounts::Counted> held_;  // used by one thread at a time
};

struct FeederService::Opening {
  Call& call;
  const v1::OpenFeedRequest& request;  // gRPC's, like the response: until the call is finished
  v1::OpenFeedResponse& response;
  std::string trace_id;
  OpenFeedArguments arguments = {};  // from Begin on
};

FeederService::FeederService(Parts parts)
    : parts_(std::move(parts)), calls_(kCalls, "call"), status_calls_(kStatusCalls, "status") {}

bool FeederService::Admit(Call& call, const google::protobuf::Message& request) {
  Result<Caller> caller = parts_.callers.Find(call.context(), call.what().c_str());
  if (!caller.ok()) {
    parts_.refusals.CountRequest(call.context().peer(), caller.status());
    call.Fail(caller.status());
    return false;
  }
  call.set_caller(*std::move(caller));
  if (call.Hold(requests_.TryAdd(call.user(), request.SpaceUsedLong(), kMaxParsedRequestBytes))) return true;
  Refuse(call, ResourceExhausted(call.what() + ": requests of this user that wait for an answer take " +
                                 ByteSize(requests_.Of(call.user())) + ", and no more are taken beyond " +
                                 ByteSize(kMaxParsedRequestBytes) + "; try again later"));
  return false;
}

Status FeederService::CountUnread(Call& call, uint64_t bytes,
                                  std::chrono::steady_clock::time_point deadline) {
  if (bytes <= kSmallAnswerBytes ||
      call.Hold(unread_.AddBy(call.user(), bytes, kMaxUnreadAnswerBytes, deadline)))
    return OkStatus();
  return ResourceExhausted(
      call.what() + ": " + ByteSize(unread_.Of(call.user())) +
      " of answers to calls of this user have not been read, and no more are made beyond " +
      ByteSize(kMaxUnreadAnswerBytes) +
      "; find the process that calls and does not read, perhaps one that is stopped, or try again later");
}

void FeederService::Answer(Call& call, google::protobuf::Message& answer) {
  const Status counted = CountUnread(call, answer.ByteSizeLong(), {});  // at once
  if (counted.ok()) return call.Finish(grpc::Status::OK);
  answer.Clear();
  Refuse(call, counted);
}

void FeederService::Refuse(Call& call, const Status& error) const {
  if (error.code() != Code::kCancelled) parts_.refusals.CountRequest(Describe(call.caller()), error);
  call.Fail(error);
}

void FeederService::Queue(Call& call, std::function<void()> work) {
  if (calls_.Submit(call.user(), std::move(work))) return;
  Refuse(call, ResourceExhausted(call.what() + ": " + std::to_string(kCalls.waiting_a_user) +
                                 " calls of this user wait already; try again later"));
}

grpc::ServerUnaryReactor* FeederService::OpenFeed(grpc::CallbackServerContext* context,
                                                  const v1::OpenFeedRequest* request,
                                                  v1::OpenFeedResponse* response) {
  auto* const call = new Call(*context, "open a feed");
  if (!Admit(*call, *request)) return call;
  const auto opening = std::make_shared<Opening>(Opening{*call, *request, *response, TraceIdOf(*context)});
  Queue(*call, [this, opening] { Begin(opening); });
  return call;
}

Result<OpenFeedArguments> FeederService::Check(const Caller& caller,
                                               const v1::OpenFeedRequest& request) const {
  if (caller.remote()) {
    return PermissionDenied(
        "open a feed: batches are handed over in memory, so not over TCP; open it on the daemon's host, at "
        "its socket");
  }
  if (request.protocol_version() != kProtocolVersion) {
    return FailedPrecondition("protocol_version: the client speaks version " +
                              std::to_string(request.protocol_version()) + ", this daemon (" +
                              parts_.version + ") version " + std::to_string(kProtocolVersion) +
                              "; install the same pinfeed on both sides");
  }
  if (request.boot_id() != parts_.boot_id) {
    return FailedPrecondition(
        "boot_id: the client runs on another kernel than the daemon; batches are handed over in memory, so "
        "both must be on "
        "one host, with no virtual machine between them");
  }
  return ReadOpenFeedRequest(request);
}

void FeederService::Begin(const std::shared_ptr<Opening>& opening) {
  const LogScope scope({.trace_id = opening->trace_id});
  if (opening->call.cancelled()) return opening->call.Finish(grpc::Status::CANCELLED);
  Result<OpenFeedArguments> arguments = Check(opening->call.caller(), opening->request);
  if (!arguments.ok()) return Refuse(opening->call, arguments.status());
  opening->arguments = *std::move(arguments);
  opening->arguments.trace_id = opening->trace_id;
  Open(opening, nullptr);
}

void FeederService::OpenDataset(const std::shared_ptr<Opening>& opening) {
  const auto opened = [this, opening](const DatasetOpener::Opened& dataset) {
    const LogScope scope({.trace_id = opening->trace_id});
    if (!dataset.ok()) return Refuse(opening->call, dataset.status());
    Queue(opening->call, [this, opening, dataset = *dataset] { Open(opening, dataset); });
  };
  parts_.dataset_opener.Open(opening->call.user(), opening->arguments.spec.dataset, opening->call.limits(),
                             opened);
}

void FeederService::Open(const std::shared_ptr<Opening>& opening,
                         const std::shared_ptr<const Dataset>& dataset) {
  const LogScope scope({.trace_id = opening->trace_id});
  const auto refuse = [&](const Status& error) { Refuse(opening->call, error); };
  if (const Status wanted = opening->call.CheckWanted(); !wanted.ok()) return refuse(wanted);
  Result<OpenFeedOutcome> outcome =
      parts_.opener.Open(opening->call.caller().peer, opening->arguments, dataset);
  if (!outcome.ok()) return refuse(outcome.status());
  if (std::holds_alternative<DatasetNeeded>(*outcome)) return OpenDataset(opening);
  if (auto* const opened = std::get_if<std::shared_ptr<Session>>(&*outcome)) {
    // The daemon may exit after any answer, so nothing here holds the session when the call is finished.
    if (const Status offered = Offer(*opening, std::exchange(*opened, nullptr)); !offered.ok())
      return refuse(offered);
  } else {
    opening->response.set_end_first(true);
  }
  opening->call.Finish(grpc::Status::OK);
}

Status FeederService::Offer(Opening& opening, const std::shared_ptr<Session>& session) {
  const auto deadline =
      std::min(opening.call.limits().deadline, std::chrono::steady_clock::now() + kLongestWait);
  Status wanted = opening.call.CheckWanted();
  if (wanted.ok()) wanted = CountUnread(opening.call, BytesOfNames(*session->feed), deadline);
  if (wanted.ok()) wanted = opening.call.CheckWanted();
  if (!wanted.ok()) {
    parts_.lifelines.Abandon(session);
    return wanted;
  }
  parts_.lifelines.Expect(session);
  DescribeOffer(*session, parts_.lifelines.path(), parts_.server_epoch, &opening.response);
  return OkStatus();
}

grpc::ServerUnaryReactor* FeederService::JoinBatcher(grpc::CallbackServerContext* context,
                                                     const v1::JoinBatcherRequest* request,
                                                     v1::BatcherInvitation* response) {
  auto* const call = new Call(*context, "join a batcher");
  if (!Admit(*call, *request)) return call;
  // It allocates memory.
  Queue(*call, [this, call, request, response] {
    Status joined = call->CheckWanted();
    if (joined.ok()) joined = Join(call->caller(), *request, *response);
    if (!joined.ok()) return Refuse(*call, joined);
    Answer(*call, *response);
  });
  return call;
}

Status FeederService::Join(const Caller& caller, const v1::JoinBatcherRequest& request,
                           v1::BatcherInvitation& response) const {
  if (caller.remote())
    return PermissionDenied("join a batcher: only processes of this host can share its memory");
  ASSIGN_OR_RETURN(const BatcherPlace place,
                   parts_.opener.JoinBatcher(caller.peer, {request.name(), request.consumer(),
                                                           request.slots(), request.max_request_bytes()}));
  ASSIGN_OR_RETURN(const Token token, parts_.lifelines.batchers().Invite(caller.peer, place));
  response.set_lifeline_path(parts_.lifelines.path());
  response.set_token(token.data(), token.size());
  DescribePlace(place, response);
  return OkStatus();
}

grpc::ServerUnaryReactor* FeederService::GetStatus(grpc::CallbackServerContext* context,
                                                   const v1::GetStatusRequest* request,
                                                   v1::GetStatusResponse* response) {
  auto* const call = new Call(*context, "get the status");
  if (!Admit(*call, *request)) return call;
  const bool taken = status_calls_.Submit(call->user(), [this, call, response] {
    if (call->cancelled()) return call->Finish(grpc::Status::CANCELLED);
    FillStatus(parts_.snapshot(), *response);
    Answer(*call, *response);
  });
  if (!taken) call->Finish(ToGrpc(Unavailable("get the status: the daemon is stopping")));
  return call;
}

// Asks for all datasets at once, so that one on hung storage does not delay the others. Lists have a dataset
// account of their own, so hung datasets do not keep a user from opening feeds.
grpc::ServerUnaryReactor* FeederService::ListDatasets(grpc::CallbackServerContext* context,
                                                      const v1::ListDatasetsRequest* request,
                                                      v1::ListDatasetsResponse* response) {
  auto* const call = new Call(*context, "list the datasets");
  if (!Admit(*call, *request)) return call;
  const std::shared_ptr<const DatasetCache::Options> options = parts_.datasets.options();
  for (const std::string& root : options->allowed_roots) response->add_allowed_roots(EscapeUnprintable(root));
  // One per dataset and one for this function. The call that brings it to 0 finishes the reply.
  const auto left = std::make_shared<std::atomic<size_t>>(options->named.size() + 1);
  const auto done = [this, left, call, response] {
    if (--*left != 0) return;
    if (call->cancelled()) return call->Finish(grpc::Status::CANCELLED);
    Answer(*call, *response);
  };
  std::vector<DatasetSpec> specs;
  for (const auto& [name, configured] : options->named) {  // adds every entry before any is filled
    v1::ListDatasetsResponse::Dataset& out = *response->add_datasets();
    out.set_name(name);
    out.set_path(configured.path);
    out.set_format(configured.format);
    specs.emplace_back().name = name;
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    v1::ListDatasetsResponse::Dataset& out = *response->mutable_datasets(static_cast<int>(i));
    const auto fill = [&out, done](const DatasetOpener::Opened& dataset) {
      if (dataset.ok()) {
        FillDataset((*dataset)->info(), out);
      } else {
        out.set_error(dataset.status().ToString());
      }
      done();
    };
    parts_.dataset_opener.Open(DatasetOpener::kListAccount, specs[i], call->limits(), fill);
  }
  done();
  return call;
}

Result<std::string> ReadBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!(file >> id))
    return Internal("read /proc/sys/kernel/random/boot_id: it cannot be read; is /proc mounted?");
  return id;
}

}  // namespace pinfeed
