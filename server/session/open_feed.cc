// SPDX-License-Identifier: Apache-2.0
#include "server/session/open_feed.h"

#include <algorithm>
#include <chrono>

#include "common/log.h"
#include "common/quote.h"
#include "server/memory/host_arena.h"

namespace pinfeed {
namespace {

// How long a feed that does not fit waits for the memory of feeds that just ended: a trainer that restarts
// needs its own.
constexpr std::chrono::seconds kReclaimWait(2);

// Small batches are used up fast and cost little to keep: within this much memory a feed gets up to four
// times the slots, so that the daemon is woken for several of them at once.
constexpr uint64_t kSmallArenaBytes = uint64_t{64} << 20;

uint32_t SlotsFor(uint32_t default_slots, uint64_t slot_stride) {
  const uint64_t most = std::min<uint64_t>(uint64_t{4} * default_slots, kMaxSlots);
  return static_cast<uint32_t>(std::clamp<uint64_t>(kSmallArenaBytes / slot_stride, default_slots, most));
}

// Where the batches will lie: on the GPU that the client named if it wants that and we can.
Result<bool> OnDevice(const FeedSpec& spec, const std::string& gpu_uuid, const DeviceArenas* devices) {
  const bool required = spec.backend == Backend::kCudaIpc || spec.backend == Backend::kVmmFd;
  if (required && gpu_uuid.empty())
    return InvalidArgument("backend: memory of a GPU is asked for, but the client names no GPU (gpu_uuid)");
  if (spec.backend == Backend::kHost || gpu_uuid.empty()) return false;
  if (devices == nullptr) {
    if (required) {
      return FailedPrecondition(
          "backend: this daemon has no GPU; its log says why. Ask for the backend auto or host, "
          "and copy the tensors yourself");
    }
    spdlog::warn("backend auto for GPU {}: this daemon has no GPU, so the batches stay in host memory",
                 EscapeName(gpu_uuid));
    return false;
  }
  if (spec.backend == Backend::kCudaIpc)
    return Status(Code::kUnimplemented,
                  "backend: cuda-ipc is not built into this daemon; ask for vmm-fd or auto");
  return true;
}

Result<std::optional<Sampler::Start>> StartOf(const std::optional<Cursor>& cursor, const Feed& feed) {
  if (!cursor) return std::optional<Sampler::Start>();
  const std::string& fingerprint = feed.dataset().fingerprint;
  if (!cursor->fingerprint.empty() && cursor->fingerprint != fingerprint) {
    return FailedPrecondition(
        "cursor.fingerprint: the cursor is of dataset " + cursor->fingerprint + ", this one is " +
        fingerprint +
        ": its files are not those the cursor was made with, so its position means something else");
  }
  ASSIGN_OR_RETURN(const Sampler::Start start, feed.sampler().Resume(*cursor));
  return std::optional<Sampler::Start>(start);
}

}  // namespace

Result<std::unique_ptr<Arena>> FeedOpener::MakeArena(const FeedSpec& spec, const std::string& gpu_uuid,
                                                     const BatchLayout& layout, uint32_t slots) const {
  if (!gpu_uuid.empty()) return parts_.devices->Make(gpu_uuid, layout, slots);
  const bool shared = spec.sharing != Sharing::kExclusive;
  ASSIGN_OR_RETURN(std::unique_ptr<HostArena> arena, HostArena::Create(layout, slots, shared, parts_.pool));
  return std::unique_ptr<Arena>(std::move(arena));
}

Result<std::shared_ptr<Feed>> FeedOpener::MakeFeed(uint64_t feed_id, uid_t owner, const FeedSpec& spec,
                                                   const std::string& gpu_uuid) const {
  ASSIGN_OR_RETURN(const bool on_device, OnDevice(spec, gpu_uuid, parts_.devices));
  ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset, parts_.datasets.Open(spec.dataset));
  ASSIGN_OR_RETURN(const Sampler sampler, Sampler::Create(spec, dataset->info().samples));
  ASSIGN_OR_RETURN(
      std::unique_ptr<SampleLoader> loader,
      SampleLoader::Create(std::move(dataset), spec, on_device ? TailAt::kClient : TailAt::kWorker));
  ASSIGN_OR_RETURN(BatchLayout layout, BatchLayout::Create(loader->outputs(), spec.batch_size));
  const uint32_t slots = spec.slots == 0 ? SlotsFor(parts_.default_slots, layout.slot_stride) : spec.slots;
  const std::string device = on_device ? gpu_uuid : "";
  Result<std::unique_ptr<Arena>> arena = MakeArena(spec, device, layout, slots);
  if (!arena.ok() && arena.status().code() == Code::kResourceExhausted) {
    parts_.feeds.AwaitReclaim(std::chrono::steady_clock::now() + kReclaimWait);
    arena = MakeArena(spec, device, layout, slots);
  }
  if (!arena.ok()) {
    return arena.status().WithContext("a feed of " + std::to_string(slots) + " slots with batches of " +
                                      std::to_string(spec.batch_size));
  }
  Feed::Parts parts{feed_id,           spec,  std::move(layout), sampler, std::move(loader),
                    *std::move(arena), owner, &parts_.tracer};
  return std::make_shared<Feed>(std::move(parts), parts_.workers);
}

Result<std::shared_ptr<Session>> FeedOpener::Open(const Peer& peer,
                                                  const OpenFeedArguments& arguments) const {
  if (peer.pid == 0) {
    return FailedPrecondition(
        "open a feed: the client's process is not visible to the daemon, so its end could not be seen; let "
        "both share a "
        "PID namespace (in Kubernetes: hostPID: true for the daemon)");
  }
  RETURN_IF_ERROR(
      parts_.sessions.CheckRoom(arguments.spec.group_size));  // before anything costly; Open below decides
  const auto make = [&](uint64_t feed_id) {
    return MakeFeed(feed_id, peer.uid, arguments.spec, arguments.gpu_uuid);
  };
  ASSIGN_OR_RETURN(FeedMember member, parts_.feeds.Join(peer.uid, arguments.spec, make));
  ASSIGN_OR_RETURN(const std::optional<Sampler::Start> start, StartOf(arguments.cursor, member.feed()));
  ASSIGN_OR_RETURN(std::unique_ptr<ControlPages> pages,
                   ControlPages::Create(member.feed().arena().slot_count()));
  return parts_.sessions.Open(peer, arguments.client_name, start, std::move(member), std::move(pages));
}

Cursor StartCursor(const Session& session) {
  Feed& feed = session.member.feed();
  Cursor cursor;
  cursor.fingerprint = feed.dataset().fingerprint;
  cursor.seed = feed.spec().seed;
  cursor.order = feed.spec().order;
  Sampler::Start start{0, 0};
  if (session.start) {
    start = *session.start;
  } else if (const FeedSnapshot now = feed.Snapshot(); now.batches > 0) {  // joins a running group
    const BatchPlan last = feed.sampler().Plan(now.epoch, now.batch_index);
    start = last.last_of_epoch ? Sampler::Start{now.epoch + 1, 0}
                               : Sampler::Start{now.epoch, now.batch_index + 1};
  }
  cursor.epoch = start.epoch;
  cursor.position = start.batch_index * feed.sampler().global_batch();
  return cursor;
}

}  // namespace pinfeed
