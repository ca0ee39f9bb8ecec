// SPDX-License-Identifier: Apache-2.0
#include "server/session/service.h"

#include <fstream>

#include "common/log.h"
#include "common/log_context.h"
#include "server/session/grpc_status.h"
#include "server/session/status_message.h"

namespace pinfeed {
namespace {

constexpr uint32_t kCallThreads = 32;
constexpr size_t kMaxWaitingCalls = 512;  // of one user: more than max_sessions usually is

v1::ImageTail ToMessage(const ImageTail& tail) {
  const auto layout = [](ImageLayout l) {
    return l == ImageLayout::kHwc ? v1::FeedSpec::HWC : v1::FeedSpec::CHW;
  };
  v1::ImageTail out;
  out.set_height(tail.height);
  out.set_width(tail.width);
  out.set_channels(tail.channels);
  out.set_source_layout(layout(tail.source_layout));
  out.set_output_layout(layout(tail.output_layout));
  out.set_mark_tensor(tail.mark ? *tail.mark + 1 : 0);
  out.mutable_table()->Add(tail.table.begin(), tail.table.end());
  return out;
}

// Empty when the caller is in no trace, or its header is not what the standard says.
std::string TraceIdOf(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  if (metadata.count("traceparent") != 1) return {};
  const grpc::string_ref header = metadata.find("traceparent")->second;
  return pinfeed::TraceIdOf(std::string_view(header.data(), header.size())).value_or("");
}

// What a client makes of a device slot: its tensors, without the marks, and with the images' end still to
// come.
void DescribeOutputs(const Feed& feed, v1::OpenFeedResponse* response) {
  const std::optional<ImageTail>& tail = feed.tail();
  const std::vector<TensorPlace>& tensors = feed.layout().tensors;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    if (tail && tail->mark == i) continue;
    const bool image = tail && tail->tensor == i;
    const TensorSpec& spec = image ? tail->output : tensors[i].spec;
    v1::OutputTensor& output = *response->add_outputs();
    output.set_name(spec.name);
    output.set_dtype(static_cast<v1::DType>(spec.dtype));
    output.mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
    output.set_tensor(i);
    if (image) *output.mutable_image() = ToMessage(*tail);
  }
}

void Describe(const Session& session, const std::string& lifeline_path, uint64_t server_epoch,
              v1::OpenFeedResponse* response) {
  const Feed& feed = session.member.feed();
  const Arena& arena = session.member.arena();
  response->set_session_id(session.id);
  response->set_token(session.token.data(), session.token.size());
  response->set_server_epoch(server_epoch);
  response->set_batch_size(feed.layout().batch_size);
  for (const TensorPlace& place : feed.layout().tensors) *response->add_tensors() = ToProto(place);
  v1::ArenaOffer& offer = *response->mutable_arena();
  offer.set_backend(ToProto(arena.backend()));
  offer.set_id(arena.id().data(), arena.id().size());
  offer.set_bytes(arena.mapped_bytes());
  offer.set_slot_count(arena.slot_count());
  offer.set_slot_stride(arena.slot_stride());
  if (const auto handle = arena.ipc_handle()) offer.set_cuda_ipc_handle(handle->data(), handle->size());
  offer.set_read_only(feed.spec().sharing != Sharing::kExclusive);
  response->set_fingerprint(feed.dataset().fingerprint);
  response->set_dataset_samples(feed.dataset().samples);
  response->set_batches_per_epoch(feed.sampler().batches_per_epoch());
  *response->mutable_start() = ToProto(StartCursor(session));
  response->set_lifeline_path(lifeline_path);
  response->set_fallback(session.fallback);
  *response->mutable_classes() = {feed.dataset().classes.begin(), feed.dataset().classes.end()};
  if (arena.backend() != Backend::kHost) DescribeOutputs(feed, response);
}

}  // namespace

FeederService::FeederService(Parts parts)
    : parts_(std::move(parts)), calls_(kCallThreads, kMaxWaitingCalls) {}

Result<std::shared_ptr<Session>> FeederService::OpenSession(const Caller& caller,
                                                            const v1::OpenFeedRequest& request,
                                                            std::string trace_id) const {
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
        "one host and no virtual machine may lie between them");
  }
  ASSIGN_OR_RETURN(OpenFeedArguments arguments, FromProto(request));
  arguments.trace_id = std::move(trace_id);
  return parts_.opener.Open(caller.peer, arguments);
}

grpc::ServerUnaryReactor* FeederService::Queue(grpc::CallbackServerContext* context, const char* what,
                                               Work work) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Result<Caller> caller = parts_.callers.Find(*context, what);
  if (!caller.ok()) {
    reactor->Finish(ToGrpc(caller.status()));
    return reactor;
  }
  const bool taken =
      calls_.Submit(caller->peer.uid, [context, reactor, caller = *caller, work = std::move(work)] {
        reactor->Finish(context->IsCancelled() ? grpc::Status::CANCELLED : work(caller));
      });
  if (!taken) {
    const Status refused = ResourceExhausted(std::string(what) + ": " + std::to_string(kMaxWaitingCalls) +
                                             " calls of this user wait already; try again later");
    parts_.refusals.CountRequest(Describe(*caller), refused);
    reactor->Finish(ToGrpc(refused));
  }
  return reactor;
}

grpc::ServerUnaryReactor* FeederService::OpenFeed(grpc::CallbackServerContext* context,
                                                  const v1::OpenFeedRequest* request,
                                                  v1::OpenFeedResponse* response) {
  return Queue(context, "open a feed", [this, context, request, response](const Caller& caller) {
    return Open(caller, *context, *request, response);
  });
}

grpc::Status FeederService::Open(const Caller& caller, const grpc::CallbackServerContext& context,
                                 const v1::OpenFeedRequest& request, v1::OpenFeedResponse* response) const {
  std::string trace_id = TraceIdOf(context);
  const LogScope scope({.session = 0, .feed = 0, .trace_id = trace_id});
  const Result<std::shared_ptr<Session>> session = OpenSession(caller, request, std::move(trace_id));
  if (!session.ok()) {
    parts_.refusals.CountRequest(Describe(caller), session.status());
    return ToGrpc(session.status());
  }
  if (context.IsCancelled()) {
    parts_.lifelines.Abandon(*session);
    return grpc::Status::CANCELLED;
  }
  parts_.lifelines.Expect(*session);
  Describe(**session, parts_.lifelines.path(), parts_.server_epoch, response);
  return grpc::Status::OK;
}

grpc::ServerUnaryReactor* FeederService::GetStatus(grpc::CallbackServerContext* context,
                                                   const v1::GetStatusRequest* /*request*/,
                                                   v1::GetStatusResponse* response) {
  FillStatus(parts_.snapshot(), parts_.version, *response);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* FeederService::ListDatasets(grpc::CallbackServerContext* context,
                                                      const v1::ListDatasetsRequest* /*request*/,
                                                      v1::ListDatasetsResponse* response) {
  return Queue(context, "list the datasets",
               [this, context, response](const Caller& /*caller*/) { return List(*context, response); });
}

grpc::Status FeederService::List(const grpc::CallbackServerContext& context,
                                 v1::ListDatasetsResponse* response) const {
  const std::shared_ptr<const DatasetCache::Options> options = parts_.datasets.options();
  for (const auto& [name, configured] : options->named) {
    if (context.IsCancelled()) return grpc::Status::CANCELLED;
    v1::ListDatasetsResponse::Dataset& out = *response->add_datasets();
    out.set_name(name);
    out.set_path(configured.path);
    out.set_format(configured.format);
    DatasetSpec spec;
    spec.name = name;
    const Result<std::shared_ptr<const Dataset>> dataset = parts_.datasets.Open(spec);
    if (!dataset.ok()) {
      out.set_error(dataset.status().ToString());
      continue;
    }
    FillDataset((*dataset)->info(), out);
  }
  for (const std::string& root : options->allowed_roots) response->add_allowed_roots(root);
  return grpc::Status::OK;
}

Result<std::string> ReadBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!(file >> id))
    return Internal("read /proc/sys/kernel/random/boot_id: it cannot be read; is /proc mounted?");
  return id;
}

}  // namespace pinfeed
