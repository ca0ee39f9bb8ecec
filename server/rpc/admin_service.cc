// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/admin_service.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <string>

#include "common/base/faults.h"
#include "common/base/log.h"
#include "common/base/quote.h"
#include "server/rpc/grpc_status.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMinSeconds = 0.1;
constexpr double kMaxSeconds = 300;
constexpr double kMaxUserSeconds = 60;  // for users who are not operators
constexpr uint64_t kMaxSpans = 10'000'000;
// How often client pages are sampled: the precision of times that clients do not report themselves.
constexpr std::chrono::microseconds kSampleInterval{500};
constexpr std::chrono::milliseconds kSendInterval{100};
constexpr size_t kSendAt = Tracer::kCapacity / 4;
constexpr size_t kSpansPerMessage = 4096;
// Limit for a caller that does not read the stream.
constexpr std::chrono::seconds kWriteTimeout{10};

Status CheckRequest(const v1::TraceRequest& request) {
  Faults faults;
  if (!(request.seconds() >= kMinSeconds && request.seconds() <= kMaxSeconds))
    faults.Add("seconds", "must be from 0.1 to 300");
  if (request.max_spans() < 1 || request.max_spans() > kMaxSpans)
    faults.Add("max_spans", "must be from 1 to 10000000");
  return faults.ToStatus();
}

std::string ThreadName(uint32_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

void Fill(const TraceSpan& span, v1::Span& out) {
  out.set_kind(static_cast<v1::Span::Kind>(span.kind));
  out.set_feed(span.feed);
  out.set_epoch(span.epoch);
  out.set_batch(span.batch);
  out.set_begin_ns(span.begin_ns);
  out.set_end_ns(span.end_ns);
  out.set_samples(span.samples);
  out.set_slot(span.slot);
  out.set_thread(span.thread);
  out.set_session(span.session);
  out.set_open(span.open);
}

constexpr size_t kMaxReason = 200;

// Purpose: sends each name once. Threads: one.
class SentNames {
 public:
  void AddThreads(const std::vector<TraceSpan>& spans, v1::TraceResponse& message) {
    for (const TraceSpan& span : spans) {
      if (span.thread == 0 || !threads_.insert(span.thread).second) continue;
      v1::TraceResponse::Thread& out = *message.add_threads();
      out.set_thread(span.thread);
      out.set_name(ThreadName(span.thread));
    }
  }
  void AddFeeds(const std::vector<std::shared_ptr<Feed>>& feeds, std::optional<uid_t> scope,
                v1::TraceResponse& message) {
    for (const auto& feed : feeds) {
      if ((scope && feed->owner() != *scope) || !feeds_.insert(feed->id()).second) continue;
      v1::TraceResponse::Feed& out = *message.add_feeds();
      out.set_feed(feed->id());
      out.set_dataset(EscapeName(feed->dataset().path));
    }
  }
  void AddSessions(const std::vector<std::shared_ptr<Session>>& sessions, std::optional<uid_t> scope,
                   v1::TraceResponse& message) {
    for (const auto& session : sessions) {
      if ((scope && session->peer.uid != *scope) || !sessions_.insert(session->id).second) continue;
      v1::TraceResponse::Session& out = *message.add_sessions();
      out.set_session(session->id);
      out.set_feed(session->feed->id());
      out.set_client_name(EscapeUnprintable(session->client_name));
      out.set_pid(session->peer.pid);
    }
  }

 private:
  std::set<uint32_t> threads_;
  std::set<uint64_t> feeds_;
  std::set<uint64_t> sessions_;
};

}  // namespace

void AdminService::CountRefusal(const grpc::CallbackServerContext& context, const Status& error) const {
  const Result<Caller> caller = parts_.callers.Find(context, "count a refusal");
  parts_.refusals.Count(Refusal::kRequest,
                        (caller.ok() ? Describe(*caller) : context.peer()) + ": " + error.ToString());
}

grpc::ServerUnaryReactor* AdminService::Finish(const grpc::CallbackServerContext& context,
                                               grpc::ServerUnaryReactor& reactor,
                                               const Status& status) const {
  if (!status.ok()) CountRefusal(context, status);
  reactor.Finish(ToGrpc(status));
  return &reactor;
}

std::optional<uid_t> AdminService::ScopeOf(const Caller& caller) const {
  const uid_t uid = caller.peer.uid;
  if (caller.remote() || uid == 0 || uid == parts_.own_uid) return std::nullopt;
  return uid;
}

grpc::ServerWriteReactor<v1::TraceResponse>* AdminService::Trace(grpc::CallbackServerContext* context,
                                                                 const v1::TraceRequest* request) {
  auto* const stream = new TraceStream(*context);  // NOLINT(cppcoreguidelines-owning-memory): see TraceStream
  if (const Status begun = StartTrace(*context, *request, *stream); !begun.ok()) {
    CountRefusal(*context, begun);
    stream->End(ToGrpc(begun));
  }
  return stream;
}

Status AdminService::StartTrace(const grpc::CallbackServerContext& context, const v1::TraceRequest& request,
                                TraceStream& stream) {
  ASSIGN_OR_RETURN(const Caller caller, parts_.callers.Find(context, "trace"));
  if (caller.remote())
    return PermissionDenied("trace: not over TCP; trace on the daemon's host, at its socket");
  RETURN_IF_ERROR(CheckRequest(request));
  const std::optional<uid_t> scope = ScopeOf(caller);
  ASSIGN_OR_RETURN(const uint64_t trace, ReserveTrace(scope, request.seconds(), stream));
  spdlog::info("{} traces {} for {} s", Describe(caller), scope ? "its own feeds" : "all feeds",
               request.seconds());
  const bool taken = calls_.Submit(caller.peer.uid, [this, &stream, trace, scope, seconds = request.seconds(),
                                                     max_spans = request.max_spans()] {
    const Clock::time_point began = Clock::now();
    Status ended;
    {
      Result<Tracer::Recording> recording = parts_.tracer.Start(scope);
      ended = recording.ok() ? RunTrace(stream, *recording, scope, seconds, max_spans) : recording.status();
    }
    ReleaseTrace(trace, scope, began);  // before the caller sees the end, so that it may trace again at once
    stream.End(ToGrpc(ended));
  });
  if (taken) return OkStatus();
  ReleaseTrace(trace, std::nullopt, Clock::now());
  return ResourceExhausted("trace: the previous trace has not ended yet; try again");
}

Result<Caller> AdminService::FindOperator(const grpc::CallbackServerContext& context,
                                          const char* what) const {
  ASSIGN_OR_RETURN(Caller caller, parts_.callers.Find(context, what));
  if (!ScopeOf(caller)) return caller;
  const Status refused = PermissionDenied(std::string(what) + ": only root and the daemon's own user (uid " +
                                          std::to_string(parts_.own_uid) + ") may; you are uid " +
                                          std::to_string(caller.peer.uid));
  return refused;
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* /*request*/,
                                              v1::DrainResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Result<Caller> caller = FindOperator(*context, "drain");
  if (!caller.ok()) return Finish(*context, *reactor, caller.status());
  for (const std::shared_ptr<Session>& session : parts_.sessions.All())
    response->set_sessions(response->sessions() + (HasLeft(*session) ? 0 : 1));
  response->set_drain_timeout_seconds(
      std::chrono::duration<double>(parts_.operations.drain_timeout()).count());
  return Finish(*context, *reactor, parts_.operations.drain("drain by " + Describe(*caller)));
}

grpc::ServerUnaryReactor* AdminService::Evict(grpc::CallbackServerContext* context,
                                              const v1::EvictRequest* request, v1::EvictResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Result<Caller> caller = FindOperator(*context, "evict");
  if (!caller.ok()) return Finish(*context, *reactor, caller.status());
  if (request->reason().size() > kMaxReason) {
    return Finish(*context, *reactor,
                  InvalidArgument("reason: " + std::to_string(request->reason().size()) +
                                  " bytes exceed the limit of " + std::to_string(kMaxReason)));
  }
  if (const std::shared_ptr<Session> session = parts_.sessions.Find(request->session()))
    response->set_session(Describe(*session));
  const std::string why = request->reason().empty() ? "" : ": " + EscapeName(request->reason());
  parts_.lifelines.Evict(request->session(),
                         {Code::kAborted, "evicted by an operator (" + Describe(*caller) + ")" + why},
                         [=, this](const Result<size_t>& held) {
                           if (held.ok()) response->set_batches_held(static_cast<uint32_t>(*held));
                           Finish(*context, *reactor, held.status());
                         });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Reload(grpc::CallbackServerContext* context,
                                               const v1::ReloadRequest* /*request*/,
                                               v1::ReloadResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Result<Caller> caller = FindOperator(*context, "reload");
  if (!caller.ok()) return Finish(*context, *reactor, caller.status());
  parts_.operations.reload("reload by " + Describe(*caller), [=, this](const Result<ReloadReport>& report) {
    if (report.ok()) {
      for (const std::string& change : report->changed) response->add_changed(change);
      for (const std::string& change : report->need_restart) response->add_need_restart(change);
      for (const std::string& warning : report->warnings) response->add_warnings(warning);
    }
    Finish(*context, *reactor, report.status());
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const v1::SetLogLevelRequest* request,
                                                    v1::SetLogLevelResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Result<Caller> caller = FindOperator(*context, "set the log level");
  if (!caller.ok()) return Finish(*context, *reactor, caller.status());
  response->set_before(LogLevel());
  const auto before = spdlog::get_level();
  const Status set = pinfeed::SetLogLevel(request->level());
  if (!set.ok()) return Finish(*context, *reactor, set);
  // Logs at the lower of the two levels, so that the line shows in either.
  const auto now = spdlog::get_level();
  if (now > before) spdlog::set_level(before);
  spdlog::log(std::max(spdlog::level::info, std::min(before, now)), "{} sets the log level {}, which was {}",
              Describe(*caller), request->level(), response->before());
  spdlog::set_level(now);
  return Finish(*context, *reactor, OkStatus());
}

grpc::ServerUnaryReactor* AdminService::DropCache(grpc::CallbackServerContext* context,
                                                  const v1::DropCacheRequest* /*request*/,
                                                  v1::DropCacheResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const Result<Caller> caller = FindOperator(*context, "drop the cache");
  if (!caller.ok()) return Finish(*context, *reactor, caller.status());
  const bool taken = drops_.Submit(caller->peer.uid, [=, this, who = Describe(*caller)] {
    const auto dropped = parts_.operations.drop_cache();
    if (dropped.ok()) {
      spdlog::info("{} dropped {} decoded images from the cache", who, dropped->first);
      response->set_entries(dropped->first);
      response->set_bytes(dropped->second);
    }
    Finish(*context, *reactor, dropped.status());
  });
  if (taken) return reactor;
  return Finish(*context, *reactor,
                ResourceExhausted("drop the cache: the previous call still runs; try again"));
}

Result<uint64_t> AdminService::ReserveTrace(std::optional<uid_t> scope, double seconds, TraceStream& stream) {
  const MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  std::erase_if(pauses_, [&](const auto& pause) { return pause.second <= now; });
  if (scope) {
    if (seconds > kMaxUserSeconds) {
      return ResourceExhausted("trace: " + std::to_string(static_cast<int64_t>(seconds)) +
                               " seconds exceed the limit of 60 for users other than root and the daemon's");
    }
    if (const auto pause = pauses_.find(*scope); pause != pauses_.end()) {
      const auto left = std::chrono::ceil<std::chrono::seconds>(pause->second - now);
      return ResourceExhausted(
          "trace: this user has just traced, and must wait for as long as that took; try again in " +
          std::to_string(left.count()) + " s");
    }
  }
  if (active_trace_) {
    const bool takes_over = !scope && active_trace_->scope;
    if (!takes_over)
      return ResourceExhausted("trace: another trace of this daemon is running; try again when it has ended");
    active_trace_->stream->Interrupt();
  }
  active_trace_ = ActiveTrace{++last_trace_number_, scope, &stream};
  return last_trace_number_;
}

void AdminService::ReleaseTrace(uint64_t number, std::optional<uid_t> scope, Clock::time_point began) {
  const MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (scope) pauses_[*scope] = now + (now - began);
  if (active_trace_ && active_trace_->number == number) active_trace_.reset();
}

Status AdminService::RunTrace(TraceStream& stream, Tracer::Recording& recording, std::optional<uid_t> scope,
                              double seconds, uint64_t max_spans) {
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  Clock::time_point next_send = Clock::now() + kSendInterval;
  SentNames names;
  bool over = false;
  while (!over && stream.SleepUntil(Clock::now() + kSampleInterval)) {
    // Released before sending, which a slow reader can delay: the spans own memory that others wait for.
    std::vector<std::shared_ptr<Feed>> feeds = parts_.feeds.All();
    const Clock::time_point now = Clock::now();
    over = now >= end;
    for (const auto& feed : feeds) feed->ObserveForTrace(over);
    if (!over && now < next_send && recording.waiting() < kSendAt) continue;
    next_send = now + kSendInterval;

    std::vector<TraceSpan> spans = recording.Take();
    const bool full = spans.size() >= max_spans;
    if (full) spans.resize(max_spans);
    max_spans -= spans.size();
    over = over || full;
    v1::TraceResponse message;
    message.set_daemon_pid(::getpid());
    message.set_lost(recording.lost());
    message.set_full(full);
    names.AddThreads(spans, message);
    names.AddFeeds(feeds, scope, message);
    feeds.clear();
    names.AddSessions(parts_.sessions.All(), scope, message);
    for (size_t i = 0; i < spans.size() || i == 0; i += kSpansPerMessage) {
      for (size_t k = i; k < std::min(spans.size(), i + kSpansPerMessage); ++k)
        Fill(spans[k], *message.add_spans());
      if (!stream.Write(message, Clock::now() + kWriteTimeout)) return OkStatus();
      message.Clear();
      message.set_lost(recording.lost());
      message.set_full(full);
    }
  }
  if (!stream.interrupted()) return OkStatus();
  return Status(Code::kAborted, "trace: ended early: an operator has started a trace");
}

}  // namespace pinfeed
