// SPDX-License-Identifier: Apache-2.0
#include "client/src/link/daemon.h"

#include <google/protobuf/util/json_util.h>
#include <grpc/grpc.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <utility>
#include <vector>

#include "client/src/base/fork_guard.h"
#include "client/src/link/offer_message.h"
#include "client/src/link/tls_channel.h"
#include "common/base/quote.h"
#include "common/os/spare_threads.h"
#include "common/os/tcp_address.h"
#include "pinfeed/v1/admin.grpc.pb.h"
#include "pinfeed/v1/feeder.grpc.pb.h"
#include "proto/convert.h"
#include "proto/convert_enums.h"

namespace pinfeed {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;       // a dataset may have very many classes
constexpr double kMaxTraceSeconds = 600;          // above the daemon's own limit
constexpr std::chrono::seconds kTraceAnswer{30};  // behind the time that is traced

// protobuf quotes the place of a fault by bytes, so characters at either end may be cut.
std::string WholeCharacters(std::string_view text) {
  std::string whole;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    whole += text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return whole;
}

Status FromJson(const std::string& json, std::string_view what, google::protobuf::Message* message) {
  // protobuf's message for this is "Root element must be a message".
  if (const size_t start = json.find_first_not_of(" \t\r\n");
      start == std::string::npos || json[start] != '{')
    return InvalidArgument(std::string(what) + " must be a JSON object, such as {\"name\": value}");
  google::protobuf::util::JsonParseOptions options;
  options.case_insensitive_enum_parsing = true;  // messages name values as Python has them: "skip"
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, message, options);
  if (parsed.ok()) return OkStatus();
  std::string why = WholeCharacters(std::string(parsed.message()));
  if (why.ends_with('.')) why.pop_back();
  const char* const described =
      what == "spec" ? "docs/transforms.md describes the transforms, docs/protocol.md the other fields"
                     : "fields and values are those of its message in proto/pinfeed/v1";
  return InvalidArgument(std::string(what) + ": " + why + "; " + described);
}

// `zeros`: with the fields that are 0, false or empty.
Result<std::string> ToJson(const google::protobuf::Message& message, bool zeros = true) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = zeros;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!printed.ok()) return Internal("print the daemon's answer as JSON: " + std::string(printed.message()));
  return json;
}

// Makes gRPC use poll(2). With epoll, gRPC creates one epoll set per process, so a forked child would share
// its parent's: each takes the other's events and calls hang. gRPC reads its choice from the environment,
// once, so the variable is set for that moment only. A value that the user set is kept, and child processes
// do not see ours.
void InitGrpcFirst() {
  static constexpr char kChoice[] = "GRPC_POLL_STRATEGY";
  const bool chosen = ::getenv(kChoice) != nullptr;
  if (!chosen) PF_CHECK(::setenv(kChoice, "poll", 0) == 0, "no memory for a variable of the environment");
  grpc_init();
  if (!chosen) ::unsetenv(kChoice);
}

// Purpose: brackets a call's use of gRPC. When the last one of the process is destroyed, gRPC's threads have
// ended. Without it, the channel's destruction could end them later on another thread, where a fork may
// happen.
class GrpcUse {
 public:
  GrpcUse() {
    static std::once_flag first;
    std::call_once(first, [] {
      InitGrpcFirst();
      grpc_shutdown_blocking();  // NoForkScope counts the uses
    });
    grpc_init();
  }
  ~GrpcUse() { grpc_shutdown_blocking(); }
  GrpcUse(const GrpcUse&) = delete;
  GrpcUse& operator=(const GrpcUse&) = delete;
};

// gRPC accepts wall-clock deadlines only, so the remaining time is converted.
std::chrono::system_clock::time_point OnWallClock(SteadyTime deadline) {
  return std::chrono::system_clock::now() +
         std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
}

Status FromGrpc(const grpc::Status& status, const std::string& address) {
  if (status.ok()) return OkStatus();
  const auto code = static_cast<Code>(status.error_code());
  if (code == Code::kUnavailable && IsTcpAddress(address)) {
    const std::string reason = EscapeName(status.error_message());
    return {code, "call the daemon at " + address + " by TLS: " + reason + "; " + TlsHint(reason)};
  }
  // No call of this process is cancelled here: the daemon cancels what it has not answered when it ends.
  if (code == Code::kUnavailable || code == Code::kCancelled) {
    return {Code::kUnavailable,
            "the daemon at " + address + " closed the connection (" + status.error_message() +
                "); it is stopping, refuses this user, or has enough connections of this user: its "
                "log says which"};
  }
  // Replaces gRPC's message for a deadline that passed in this process. The daemon's own message says what
  // was late.
  if (code == Code::kDeadlineExceeded && status.error_message() == "Deadline Exceeded")
    return {code, "the daemon at " + address +
                      " did not answer in time: it is stopped, hangs, or is very busy; its log "
                      "and its state in `ps` tell which"};
  return {code, status.error_message()};
}

// Makes one unary call over a connection of its own. The caller's NoForkScope outlives every gRPC object, so
// gRPC is idle when it ends. Connects to a Unix socket directly instead of through gRPC's resolver: a failure
// then has an errno, and gRPC never reconnects in the background. For TLS, gRPC connects itself.
template <typename Stub, typename Request, typename Response>
Status Call(const std::string& address, SteadyTime deadline, const Request& request, Response* response,
            grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
            bool* stopping = nullptr) {
  const bool tcp = IsTcpAddress(address);
  TlsParty party;
  UniqueFd fd;
  if (tcp) {
    ASSIGN_OR_RETURN(party, ReadTlsParty(address));
    fd.reset(::eventfd(0, EFD_CLOEXEC));
    if (!fd) return ErrnoStatus("create an eventfd", errno);
  } else {
    ASSIGN_OR_RETURN(fd, ConnectUnix(address, SOCK_STREAM, deadline));
  }
  RETURN_IF_ERROR(CheckSpareDescriptors(fd.get()));
  RETURN_IF_ERROR(CheckSpareThreads("call pinfeedd"));
  const GrpcUse grpc_use;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  Stub stub(tcp ? TlsChannel(address, party, arguments)
                : grpc::CreateCustomInsecureChannelFromFd("localhost", fd.release(), arguments));
  grpc::ClientContext context;
  context.set_deadline(OnWallClock(deadline));
  const grpc::Status status = (stub.*method)(&context, request, response);
  if (stopping != nullptr && context.GetServerTrailingMetadata().count(kStoppingKey) != 0) {
    *stopping = true;
    return {Code::kUnavailable, "the daemon at " + address + ": " + status.error_message()};
  }
  return FromGrpc(status, address);
}

// The answer of a call that a daemon may be too old for: `what`.
template <typename Stub, typename Request, typename Response>
Result<std::string> AnswerAsJson(const std::string& address, SteadyTime deadline, const Request& request,
                                 grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Response*),
                                 const std::string& what) {
  Response response;
  const Status called = Call(address, deadline, request, &response, method);
  if (called.code() == Code::kUnimplemented)
    return Status(called.code(), "the daemon at " + address + " is too old for " + what);
  RETURN_IF_ERROR(called);
  return ToJson(response);
}

Result<std::string> BootId() {
  static constexpr char kPath[] = "/proc/sys/kernel/random/boot_id";
  errno = 0;
  std::ifstream file(kPath);
  if (!file) return ErrnoStatus(std::string("read ") + kPath, errno);
  std::string id;
  if (!std::getline(file, id)) return Internal(std::string("read ") + kPath + ": no line");
  return id;
}

// As the daemon takes it.
std::string ReasonText(const std::string& reason) {
  return WholeCharacters(EscapeName(reason).substr(0, kMaxReasonBytes));
}

bool IsForGpu(v1::FeedSpec::Decode decode) {
  return decode != v1::FeedSpec::DECODE_UNSPECIFIED && decode != v1::FeedSpec::DECODE_CPU;
}

// Whether the spec has fields that a daemon without refuses_unknown_fields ignores.
bool HasLaterFields(const v1::FeedSpec& spec) {
  if (!spec.dataset().image().empty() || !spec.dataset().label().empty()) return true;
  if (spec.sample_path() || spec.pad_size() > 0) return true;
  if (IsForGpu(spec.decode()) || spec.has_batcher()) return true;
  if (spec.resident() > v1::FeedSpec::RESIDENT_OFF) return true;
  return std::any_of(spec.transforms().begin(), spec.transforms().end(), [](const v1::Transform& transform) {
    return transform.resize().interpolation_size() > 0 ||
           transform.random_resized_crop().interpolation_size() > 0;
  });
}

}  // namespace

Result<bool> AsksForGpuDecode(const std::string& spec_json) {
  ASSIGN_OR_RETURN(const NoForkScope no_fork,
                   NoForkScope::Enter(std::chrono::steady_clock::now() + NoForkScope::kMaxForkWait));
  v1::FeedSpec spec;
  RETURN_IF_ERROR(FromJson(spec_json, "spec", &spec));
  return IsForGpu(spec.decode());
}

Result<FeedOffer> OpenFeed(const std::string& address, const OpenRequest& request, SteadyTime deadline,
                           bool* stopping) {
  *stopping = false;
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(deadline));
  v1::OpenFeedRequest message;
  message.set_protocol_version(kProtocolVersion);
  ASSIGN_OR_RETURN(*message.mutable_boot_id(), BootId());
  RETURN_IF_ERROR(FromJson(request.spec_json, "spec", message.mutable_spec()));
  if (request.decode && IsForGpu(message.spec().decode())) {
    message.mutable_spec()->set_decode(EnumToProto(request.decode->first, kDecodes));
    message.mutable_spec()->set_gpu_share(request.decode->second);
  }
  if (IsForGpu(message.spec().decode())) {
    message.set_decodes_on_gpu(request.decodes_on_gpu);
    message.set_no_gpu_decoder(ReasonText(request.no_gpu_decoder));
    message.set_shares_decoded(request.decodes_on_gpu);
  }
  const bool resident_auto = message.spec().resident() == v1::FeedSpec::RESIDENT_AUTO;
  if (resident_auto) {
    message.set_no_resident(ReasonText(request.no_resident));
    if (request.resident) message.mutable_spec()->set_resident(EnumToProto(*request.resident, kResidents));
  }
  if (request.cursor) *message.mutable_cursor() = ToProto(*request.cursor);
  message.set_client_name(request.client_name);
  message.set_gpu_uuid(request.gpu_uuid);
  for (const auto& [backend, reason] : request.failed_backends) {
    v1::FailedBackend& failed = *message.add_failed_backends();
    failed.set_backend(EnumToProto(backend, kBackends));
    failed.set_reason(ReasonText(reason));
  }
  message.set_replaces_session(request.replaces_session);
  v1::OpenFeedResponse response;
  RETURN_IF_ERROR(Call(address, deadline, message, &response, &v1::Feeder::Stub::OpenFeed, stopping));
  if (!response.refuses_unknown_fields() && HasLaterFields(message.spec())) {
    return FailedPrecondition("the daemon at " + address +
                              " is too old for decode, interpolation, resident, sample_path, pad, a batcher, "
                              "or a dataset's image and label: "
                              "it would ignore them; update it");
  }
  if (response.end_first() && request.replaces_session == 0)
    return Internal("the daemon at " + address + " wants a session to end first, and none was named to it");
  ASSIGN_OR_RETURN(FeedOffer offer, OfferOf(response));
  const v1::FeedSpec::Backend asked = message.spec().backend();
  offer.gathers_requests = message.spec().has_batcher();
  if (message.spec().dataset().has_produced()) {
    const v1::ProducedDataset& produced = message.spec().dataset().produced();
    offer.produced.emplace().lanes = produced.lanes();
    for (const v1::ProducedField& field : produced.fields()) offer.produced->fields.push_back(field.name());
  }
  offer.resident_optional = resident_auto;
  offer.host_acceptable = asked == v1::FeedSpec::AUTO || asked == v1::FeedSpec::BACKEND_UNSPECIFIED;
  return offer;
}

Result<std::string> JoinBatcherJson(const std::string& address, const std::string& request_json,
                                    SteadyTime deadline) {
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(deadline));
  v1::JoinBatcherRequest request;
  RETURN_IF_ERROR(FromJson(request_json, "request_json", &request));
  return AnswerAsJson(address, deadline, request, &v1::Feeder::Stub::JoinBatcher, "batchers");
}

Result<std::string> StatusJson(const std::string& address, SteadyTime deadline) {
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(deadline));
  return AnswerAsJson(address, deadline, v1::GetStatusRequest(), &v1::Feeder::Stub::GetStatus, "GetStatus");
}

Result<std::string> DatasetsJson(const std::string& address, SteadyTime deadline) {
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(deadline));
  return AnswerAsJson(address, deadline, v1::ListDatasetsRequest(), &v1::Feeder::Stub::ListDatasets,
                      "ListDatasets");
}

Result<std::string> AdminJson(const std::string& address, const std::string& method,
                              const std::string& request_json, SteadyTime deadline) {
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(deadline));
  const auto call = [&](auto request, auto stub_method) -> Result<std::string> {
    RETURN_IF_ERROR(FromJson(request_json, method, &request));
    return AnswerAsJson(address, deadline, request, stub_method, method);
  };
  using Stub = v1::Admin::Stub;
  if (method == "Drain") return call(v1::DrainRequest(), &Stub::Drain);
  if (method == "Evict") return call(v1::EvictRequest(), &Stub::Evict);
  if (method == "Reload") return call(v1::ReloadRequest(), &Stub::Reload);
  if (method == "SetLogLevel") return call(v1::SetLogLevelRequest(), &Stub::SetLogLevel);
  if (method == "DropCache") return call(v1::DropCacheRequest(), &Stub::DropCache);
  return InvalidArgument("'" + EscapeName(method) +
                         "' is none of Drain, Evict, Reload, SetLogLevel, DropCache");
}

Status Trace(const std::string& address, const std::string& request_json, const OnTrace& on_message,
             SteadyTime connect_deadline) {
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(connect_deadline));
  v1::TraceRequest request;
  RETURN_IF_ERROR(FromJson(request_json, "trace", &request));
  ASSIGN_OR_RETURN(UniqueFd fd, ConnectUnix(address, SOCK_STREAM, connect_deadline));
  RETURN_IF_ERROR(CheckSpareDescriptors(fd.get()));
  RETURN_IF_ERROR(CheckSpareThreads("call pinfeedd"));
  const GrpcUse grpc_use;
  v1::Admin::Stub stub(
      grpc::CreateCustomInsecureChannelFromFd("localhost", fd.release(), grpc::ChannelArguments()));
  grpc::ClientContext context;
  const double seconds = request.seconds() < kMaxTraceSeconds ? request.seconds() : kMaxTraceSeconds;
  const auto traced = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(std::max(seconds, 0.0)));
  context.set_deadline(OnWallClock(std::chrono::steady_clock::now() + traced + kTraceAnswer));
  const auto reader = stub.Trace(&context, request);
  std::vector<v1::TraceResponse> messages;
  bool wanted = true;
  for (v1::TraceResponse message; wanted && reader->Read(&message);) {
    messages.push_back(std::move(message));
    wanted = on_message(nullptr);
  }
  if (!wanted) context.TryCancel();
  const grpc::Status ended = reader->Finish();
  Status status;
  if (wanted && ended.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    status = Status(Code::kUnimplemented, "the daemon at " + address + " is too old to be traced");
  } else if (wanted && ended.error_code() == grpc::StatusCode::CANCELLED) {
    status = Unavailable("the daemon at " + address + " ended the trace: it is stopping");
  } else if (wanted) {
    status = FromGrpc(ended, address);
  }
  for (const v1::TraceResponse& message : messages) {
    ASSIGN_OR_RETURN(const std::string json, ToJson(message, false));
    if (!on_message(&json)) break;
  }
  return status;
}

Result<Cursor> CursorFromJson(const std::string& json) {
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(SteadyTime::max()));
  v1::Cursor cursor;
  RETURN_IF_ERROR(FromJson(json, "cursor", &cursor));
  return FromProto(cursor);
}

std::string CursorToJson(const Cursor& cursor) {
  const auto no_fork = NoForkScope::Enter(SteadyTime::max());  // may fail: a forked child has no feed
  Result<std::string> json = ToJson(ToProto(cursor));
  PF_CHECK(json.ok(), "a cursor of plain fields is always printable");
  return std::move(json).value();
}

}  // namespace pinfeed
