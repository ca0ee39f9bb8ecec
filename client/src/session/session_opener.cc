// SPDX-License-Identifier: Apache-2.0
#include "client/src/session/session_opener.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <thread>

#include "client/src/base/backoff.h"
#include "client/src/base/client_log.h"
#include "client/src/base/deadline.h"
#include "common/spec/names.h"

namespace pinfeed {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// For the other members of a group, which may be replacing their sessions too.
constexpr std::chrono::seconds kReplacePatience{2};
// A connection that closes without an answer means that the daemon ended or refuses this user. A daemon that
// ends causes at most two: an accepted connection and a queued one. So the third is a refusal.
constexpr int kMaxEndings = 3;
// How often an offer may be unknown behind it. The daemon is then another one, or one of the two processes
// was stopped for longer than the daemon waits for a lifeline. OpenFirst tries all of it kMaxEndings times.
constexpr int kMaxForgotten = 3;

}  // namespace

SessionOpener::~SessionOpener() {
  if (fork_guard_.InCreatorProcess()) return;
  // The context belongs to the parent process.
  if (options_.gpu) (void)new (std::nothrow) std::shared_ptr<const void>(std::move(options_.gpu));
  if (decoder_) (void)new (std::nothrow) std::shared_ptr<DecodeEngine>(std::move(decoder_));
}

Result<std::shared_ptr<Session>> SessionOpener::OpenFirst() {
  RETURN_IF_ERROR(OpenDecoder());
  const SteadyTime deadline = steady_clock::now() + options_.open_timeout;
  Backoff backoff;
  int endings = 0;
  // If the daemon said that it is stopping, a closed or refused connection is no final answer.
  bool stops = false;
  while (true) {
    Result<std::shared_ptr<Session>> session = OpenBy(deadline, options_.request.cursor, nullptr);
    const Status tried = session.status();
    const bool was_late = stops && tried.code() == Code::kDeadlineExceeded;  // the last try of many
    if (tried.code() != Code::kUnavailable && !was_late) return session;
    const bool absent = tried.native_error() == ENOENT || tried.native_error() == ECONNREFUSED;
    stops = stops || stopping_ || (absent && endings > 0);
    if (!stops && (absent || ++endings == kMaxEndings)) return tried;
    const nanoseconds left = deadline - steady_clock::now();
    if (left <= Backoff::kFirst) {
      if (!stops) return tried;
      return Unavailable(
          "the daemon at " + options_.address + " has ended or is stopping, and no other came within " +
          Seconds(options_.open_timeout) + " (the open timeout); the last try: " + tried.message());
    }
    std::this_thread::sleep_for(std::min(backoff.Next(), left / 2));
  }
}

Result<std::shared_ptr<Session>> SessionOpener::Open(const Cursor& cursor, const FeedOffer& before) {
  return OpenBy(steady_clock::now() + options_.open_timeout, cursor, &before);
}

Result<std::shared_ptr<Session>> SessionOpener::Replace(const Cursor& cursor, const FeedOffer& before) {
  const SteadyTime deadline = steady_clock::now() + kReplacePatience;
  for (Backoff backoff;;) {
    Result<std::shared_ptr<Session>> replaced =
        OpenBy(steady_clock::now() + options_.open_timeout, cursor, &before, before.session_id);
    // Other members of the group may be replacing their sessions too, and briefly have one more each.
    const bool full = !replaced.ok() && replaced.status().code() == Code::kResourceExhausted;
    const nanoseconds left = deadline - steady_clock::now();
    if (!full || left <= Backoff::kFirst) return replaced;
    std::this_thread::sleep_for(std::min(backoff.Next(), left / 2));
  }
}

// Tries each backend with a real arena. What does not work on this machine is reported to the daemon, which
// offers something else, unless the spec requires it: the next backend, or images that its workers decode.
// Other failures are returned.
Result<std::shared_ptr<Session>> SessionOpener::OpenBy(SteadyTime deadline,
                                                       const std::optional<Cursor>& cursor,
                                                       const FeedOffer* before, uint64_t replaces) {
  OpenRequest request = options_.request;
  request.cursor = cursor;
  request.replaces_session = replaces;
  int forgotten = 0;
  while (true) {
    request.failed_backends = failed_backends_;
    request.decodes_on_gpu = decoder_ != nullptr;
    request.no_gpu_decoder = no_decoder_;
    request.no_resident = no_resident_;
    Result<FeedOffer> offered = OpenFeed(options_.address, request, deadline, &stopping_);
    if (!offered.ok()) return WithGpuError(offered.status());
    const FeedOffer& offer = *offered;
    if (offer.end_first) return nullptr;
    if (before != nullptr) RETURN_IF_ERROR(CheckSameFeed(*before, offer));
    Session::Unusable unusable{};
    Result<std::shared_ptr<Session>> session =
        Session::Attach(offer, options_.device, decoder_, deadline, &unusable);
    if (session.ok()) {
      if (before == nullptr) WarnOfFallback(offer);
      // What the daemon decided once is asked for from now on, of any daemon.
      options_.request.decode = {offer.decode, offer.gpu_share};
      options_.request.resident = offer.resident ? Resident::kOn : Resident::kOff;
      return session;
    }
    if (session.status().code() == Code::kUnauthenticated) {
      if (++forgotten < kMaxForgotten && steady_clock::now() < deadline) continue;
      return Unavailable(session.status().message());
    }
    if (before != nullptr || !GiveUp(unusable, offer, session.status())) return session.status();
  }
}

bool SessionOpener::GiveUp(Session::Unusable what, const FeedOffer& offer, const Status& why) {
  switch (what) {
    case Session::Unusable::kNothing:
      return false;
    case Session::Unusable::kDecoder:
      if (offer.decode != Decode::kAuto) return false;
      decoder_ = nullptr;
      no_decoder_ = why.message();
      return true;
    case Session::Unusable::kResident:
      if (!offer.resident_optional || !no_resident_.empty()) return false;
      no_resident_ = why.message();
      return true;
    case Session::Unusable::kBackend:
      break;
  }
  const bool again = std::any_of(failed_backends_.begin(), failed_backends_.end(),
                                 [&](const auto& failed) { return failed.first == offer.backend; });
  if (!offer.host_acceptable || again) return false;
  failed_backends_.emplace_back(offer.backend, why.message());
  return true;
}

Status SessionOpener::OpenDecoder() {
  ASSIGN_OR_RETURN(const bool asked, AsksForGpuDecode(options_.request.spec_json));
  if (!asked || !options_.open_decoder) return OkStatus();
  Result<std::shared_ptr<DecodeEngine>> decoder = options_.open_decoder();
  if (decoder.ok())
    decoder_ = *std::move(decoder);
  else
    no_decoder_ = decoder.status().message();
  return OkStatus();
}

Status SessionOpener::WithGpuError(const Status& refused) const {
  if (options_.gpu_error.ok() || refused.code() != Code::kFailedPrecondition) return refused;
  return {refused.code(),
          refused.message() + "; this process cannot use the GPU: " + options_.gpu_error.message()};
}

void SessionOpener::WarnOfFallback(const FeedOffer& offer) const {
  if (!offer.decode_note.empty()) {
    const std::string gpu = options_.device < 0 ? "\"gpu\" with a device (device=)" : "\"gpu\"";
    ClientLog(PF_LOG_WARNING, "images are decoded by the CPU, not by the GPU: " + offer.decode_note +
                                  " (the daemon at " + options_.address + "); give decode \"cpu\" or " + gpu +
                                  " instead of auto to choose");
  }
  if (!offer.resident_note.empty()) {
    ClientLog(PF_LOG_WARNING, "samples are not kept on the GPU: " + offer.resident_note + " (the daemon at " +
                                  options_.address + "); require it to make this an error, or leave it off");
  }
  if (offer.fallback.empty()) return;
  const std::string where = offer.backend == Backend::kHost
                                ? "in host memory, not on GPU " + std::to_string(options_.device)
                                : std::string("by ") + BackendName(offer.backend) + ", not by vmm-fd";
  ClientLog(PF_LOG_WARNING, "batches come " + where + ": " + offer.fallback + " (the daemon at " +
                                options_.address + "); name a backend instead of auto to make this an error");
}

}  // namespace pinfeed
