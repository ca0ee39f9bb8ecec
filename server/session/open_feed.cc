// SPDX-License-Identifier: Apache-2.0
#include "server/session/open_feed.h"

#include <unistd.h>

#include <utility>

#include "common/base/quote.h"
#include "common/spec/names.h"
#include "server/metrics/snapshot.h"
#include "server/net/descriptor_room.h"
#include "server/session/feed_builder.h"

namespace pinfeed {
namespace {

Result<std::optional<Sampler::Start>> StartOf(const std::optional<Cursor>& cursor, const Feed& feed) {
  if (!cursor) return std::nullopt;
  const std::string& fingerprint = feed.dataset().fingerprint;
  if (!cursor->fingerprint.empty() && cursor->fingerprint != fingerprint) {
    return FailedPrecondition("cursor.fingerprint: the files of " + QuotePath(feed.dataset().path) +
                              ", or the options by which they are read (sequence_length, stride, image, "
                              "label), are not those of the feed's position (dataset " +
                              cursor->fingerprint + " when it was opened or saved, " + fingerprint +
                              " now), which means something else; bring them back, or open the feed anew, "
                              "without a state");
  }
  return feed.sampler().Resume(*cursor);
}

}  // namespace

// Whether that process may get an IPC handle. A handle gives access as long as the daemon lives, even to
// later contents of the memory.
Status FeedOpener::CheckIpc(const Peer& peer, const OpenFeedArguments& arguments) const {
  if (arguments.spec.sharing != Sharing::kExclusive) {
    return FailedPrecondition(
        "memory by a handle can be written by all who have it, so a group cannot share it");
  }
  if (peer.uid != ::geteuid()) {
    return FailedPrecondition(
        "a handle outlives its session, so it goes to the daemon's own user only (uid " +
        std::to_string(::geteuid()) + "), and the client has uid " + std::to_string(peer.uid));
  }
  RETURN_IF_ERROR(CheckSamePidNamespace(peer.pid));
  return parts_.devices->CheckIpcClient(arguments.gpu_uuid, peer.pid);
}

Result<BackendChoice> FeedOpener::ChooseBackend(const Peer& peer, const OpenFeedArguments& arguments) const {
  const Backend requested = arguments.spec.backend;
  const bool required = requested == Backend::kCudaIpc || requested == Backend::kVmmFd;
  if (required && arguments.gpu_uuid.empty())
    return InvalidArgument("backend: GPU memory is requested, but the client names no GPU (gpu_uuid)");
  if (required && !arguments.failed_backends.empty())
    return InvalidArgument("failed_backends: is for the backend auto only, and this spec requires a backend");
  if (requested == Backend::kHost || arguments.gpu_uuid.empty()) return BackendChoice{Backend::kHost, ""};
  if (parts_.devices == nullptr) {
    if (required) {
      return FailedPrecondition(
          "backend: this daemon has no GPU; its log says why. Ask for the backend auto or host, "
          "and copy the tensors yourself");
    }
    return BackendChoice{Backend::kHost, "this daemon has no GPU; its log says why"};
  }
  if (!required) {
    const Status known = parts_.devices->CheckFeeds(arguments.gpu_uuid);
    if (!known.ok()) return BackendChoice{Backend::kHost, known.message()};
  }
  if (requested == Backend::kVmmFd) return BackendChoice{Backend::kVmmFd, ""};
  if (requested == Backend::kCudaIpc) {
    RETURN_IF_ERROR(CheckIpc(peer, arguments)
                        .WithContext("backend: cuda-ipc was required and is not possible; auto falls back"));
    return BackendChoice{Backend::kCudaIpc, ""};
  }
  std::string fallback;
  const auto failed = [&](Backend backend) {
    for (const FailedBackend& one : arguments.failed_backends) {
      if (one.backend != backend) continue;
      fallback += (fallback.empty() ? "" : "; ") + std::string(BackendName(backend)) +
                  " failed in the client: " + EscapeUnprintable(one.reason);
      return true;
    }
    return false;
  };
  if (!failed(Backend::kVmmFd)) return BackendChoice{Backend::kVmmFd, ""};
  if (failed(Backend::kCudaIpc)) return BackendChoice{Backend::kHost, fallback};
  const Status possible = CheckIpc(peer, arguments);
  if (possible.ok()) return BackendChoice{Backend::kCudaIpc, fallback};
  return BackendChoice{Backend::kHost, fallback + "; cuda-ipc: " + possible.message()};
}

Status FeedOpener::CheckRoom(const Peer& peer, const OpenFeedArguments& arguments, bool replaces) const {
  if (peer.pid == 0) {
    return FailedPrecondition(
        "open a feed: the client's process is not visible to the daemon, so its end could not be seen; let "
        "both share a PID namespace (in Kubernetes: hostPID: true for the daemon)");
  }
  RETURN_IF_ERROR(parts_.sessions.CheckRoom(peer.uid, arguments.spec.group_size, replaces));
  return CheckDescriptorRoom(parts_.sessions.limit(), DescriptorLimit(), CountOpenFds);
}

std::shared_ptr<const Session> FeedOpener::Replaced(const Peer& peer,
                                                    const OpenFeedArguments& arguments) const {
  if (arguments.replaces_session == 0 || arguments.spec.sharing == Sharing::kExclusive) return nullptr;
  std::shared_ptr<const Session> named = parts_.sessions.Find(arguments.replaces_session);
  // With the same user, group and spec, and while it is attached, its feed is the one that Open joins.
  const bool is_it = named != nullptr && named->peer == peer && named->state == SessionState::kAttached &&
                     MayShareFeed(named->feed->spec(), arguments.spec);
  return is_it ? named : nullptr;
}

Result<bool> FeedOpener::EndsFirst(const Session& replaced, const OpenFeedArguments& arguments) const {
  // Before a feed begins, both sessions would count towards its group_size, and there is no position to lose.
  if (replaced.feed->HasBegun() && parts_.feeds.IsShared(*replaced.feed)) return false;
  RETURN_IF_ERROR(StartOf(arguments.cursor, *replaced.feed).status());
  return true;
}

Result<OpenFeedOutcome> FeedOpener::Open(const Peer& peer, const OpenFeedArguments& arguments,
                                         std::shared_ptr<const Dataset> dataset) const {
  const std::shared_ptr<const Session> replaced = Replaced(peer, arguments);
  RETURN_IF_ERROR(CheckRoom(peer, arguments, replaced != nullptr));
  if (replaced != nullptr) {
    ASSIGN_OR_RETURN(const bool ends_first, EndsFirst(*replaced, arguments));
    if (ends_first) return ReplacedEndsFirst{};
  }
  ASSIGN_OR_RETURN(const BackendChoice choice, ChooseBackend(peer, arguments));
  const Result<std::shared_ptr<Session>> session = Join(peer, arguments, choice, std::move(dataset));
  if (!session.ok()) {
    // If the daemon is stopping for the same reason, the client should try the next daemon.
    RETURN_IF_ERROR(parts_.sessions.CheckOpen());
    return session.status();
  }
  if (*session == nullptr) return DatasetNeeded{};
  RETURN_IF_ERROR(parts_.sessions.Admit(*session, replaced != nullptr));
  return *session;
}

Result<std::shared_ptr<Session>> FeedOpener::Join(const Peer& peer, const OpenFeedArguments& arguments,
                                                  const BackendChoice& choice,
                                                  std::shared_ptr<const Dataset> dataset) const {
  // Opened before the memory is allocated, so that every process that gets memory is watched.
  std::optional<ClientProcess> process;
  if (choice.backend != Backend::kHost) {
    ASSIGN_OR_RETURN(process, ClientProcess::Open(peer.pid));
  }
  FeedBuilder builder(parts_, peer.uid, arguments, choice);
  FeedTable::Make make;
  if (arguments.spec.batcher || arguments.spec.dataset.produced || dataset != nullptr)
    make = [&](uint64_t feed_id) { return builder.Make(feed_id, std::move(dataset)); };
  ASSIGN_OR_RETURN(std::shared_ptr<Session> session, parts_.feeds.Join(peer.uid, arguments.spec, make));
  if (session == nullptr) return session;
  Feed& feed = *session->feed;
  const bool decodes = DecodesOnGpu(feed.spec());
  if (const std::string why = builder.WhyNoDecoder(); decodes && !why.empty())
    return FailedPrecondition("decode: the group's batches are decoded on its members' GPUs, and " + why);
  session->resident = feed.producer().resident();
  if (session->resident != nullptr) {
    RETURN_IF_ERROR(builder.CheckResident().WithContext("resident: the group's samples are kept on a GPU"));
    if (const std::string& gpu = session->resident->parts().gpu_uuid; gpu != arguments.gpu_uuid) {
      return FailedPrecondition("resident: the group's samples are kept on GPU " + gpu +
                                ", and this client is on another one (" + QuotePath(arguments.gpu_uuid) +
                                "); open a group for each GPU");
    }
  } else if (const Backend backend = feed.arena().backend(); backend != choice.backend && !decodes) {
    return FailedPrecondition(std::string("group: its batches come by ") + BackendName(backend) +
                              ", and to this client only by " + BackendName(choice.backend) +
                              (choice.fallback.empty() ? "" : " (" + choice.fallback + ")"));
  }
  ASSIGN_OR_RETURN(const Arena* const part, builder.PartOf(feed));
  if (part != &feed.arena()) session->part = part;
  ASSIGN_OR_RETURN(session->start, StartOf(arguments.cursor, feed));
  ASSIGN_OR_RETURN(session->pages, ControlPages::Create(feed.arena().slot_count()));
  session->peer = peer;
  session->client_name = arguments.client_name;
  if (decodes && arguments.shares_decoded && feed.spec().sharing == Sharing::kBroadcast)
    session->shares_on = arguments.gpu_uuid;
  session->replaces = arguments.replaces_session;
  session->process = std::move(process);
  if (!decodes && session->resident == nullptr) session->fallback = choice.fallback;
  session->trace_id = arguments.trace_id;
  return session;
}

Cursor StartCursor(const Session& session) {
  const Feed& feed = *session.feed;
  Cursor cursor{
      .fingerprint = feed.dataset().fingerprint, .seed = feed.spec().seed, .order = feed.spec().order};
  const Sampler::Start start = session.start ? *session.start : feed.Upcoming();  // joins a running group
  cursor.epoch = start.epoch;
  cursor.position = start.batch_index * feed.sampler().global_batch();
  return cursor;
}

}  // namespace pinfeed
