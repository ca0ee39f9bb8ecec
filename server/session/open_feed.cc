// SPDX-License-Identifier: Apache-2.0
// Long because: how many slots a feed gets and what it says without memory for them depend on each other.
#include "server/session/open_feed.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "common/base/byte_size.h"
#include "common/base/quote.h"
#include "common/spec/names.h"
#include "server/dataset/selected_fields.h"
#include "server/loading/gpu_decode_program.h"
#include "server/memory/host_arena.h"
#include "server/metrics/snapshot.h"
#include "server/net/descriptor_room.h"

namespace pinfeed {
namespace {

// How long a feed that does not fit waits for the memory of feeds that have just ended. A restarted trainer
// needs the memory of its previous run.
constexpr std::chrono::seconds kReclaimWait(2);

// Small batches are consumed fast and take little memory. Up to this arena size, a feed gets up to four times
// the slots, so that each wake-up of the daemon serves several of them.
constexpr uint64_t kSmallArenaBytes = uint64_t{64} << 20;
constexpr uint64_t kTimesPacked = 4;  // most of a slot is never written: it has room for the longest samples

// On a GPU, the steps that a trainer has queued hold slots. On the host, batches that lie ready make up for
// delays, if they take a small part of what the user may have.
constexpr uint64_t kTimesMore = 2;
constexpr uint64_t kSmallPart = 32;

constexpr uint64_t kListBytes = uint64_t{4} << 20;  // of the lists of a feed with the most slots

uint32_t SlotsFor(uint64_t default_slots, uint64_t slot_stride, bool more, uint64_t times = 1) {
  const uint64_t least = more ? default_slots * kTimesMore : default_slots;
  const uint64_t slots = std::clamp(times * kSmallArenaBytes / slot_stride, least, 4 * default_slots);
  return static_cast<uint32_t>(std::min<uint64_t>(slots, kMaxSlots));
}

// Whether the client makes the batches on its GPU, of host memory.
bool DecodesOnGpu(const FeedSpec& spec) {
  return GpuShare(spec) != 0;
}

// Why the client cannot decode on its GPU; empty: it can.
std::string WhyNoDecoder(const OpenFeedArguments& arguments) {
  if (arguments.gpu_uuid.empty()) return "the client names no GPU";
  if (arguments.spec.backend != Backend::kAuto) {
    return std::string("the spec asks for the backend ") + BackendName(arguments.spec.backend) +
           ", and it takes the backend auto";
  }
  if (arguments.decodes_on_gpu) return "";
  return arguments.no_gpu_decoder.empty() ? "the client has no decoder for it"
                                          : EscapeUnprintable(arguments.no_gpu_decoder);
}

Result<std::optional<Sampler::Start>> StartOf(const std::optional<Cursor>& cursor, const Feed& feed) {
  if (!cursor) return std::optional<Sampler::Start>();
  const std::string& fingerprint = feed.dataset().fingerprint;
  if (!cursor->fingerprint.empty() && cursor->fingerprint != fingerprint) {
    return FailedPrecondition("cursor.fingerprint: the files of " + QuotePath(feed.dataset().path) +
                              ", or the options by which they are read (sequence_length, stride, image, "
                              "label), are not those of the feed's position (dataset " +
                              cursor->fingerprint + " when it was opened or saved, " + fingerprint +
                              " now), which means something else; bring them back, or open the feed anew, "
                              "without a state");
  }
  ASSIGN_OR_RETURN(const Sampler::Start start, feed.sampler().Resume(*cursor));
  return std::optional<Sampler::Start>(start);
}

// What a user can do about the memory of a batch if the rows of a packed field take most of it; else nothing.
std::string PackedMemory(const BatchLayout& layout) {
  const TensorPlace& largest = *std::ranges::max_element(layout.tensors, {}, &TensorPlace::sample_bytes);
  if (!largest.spec.extents) return "";
  const std::string name = "'" + largest.spec.name + "'";
  return "; of each slot the field " + name + " takes " + ByteSize(largest.sample_bytes * layout.batch_size) +
         ": its longest sample has " + std::to_string(largest.spec.shape[0]) + " rows, " +
         std::to_string(largest.sample_bytes) + " bytes, and a batch has room for " +
         std::to_string(layout.batch_size) +
         " such samples. Use a smaller batch_size, read the other fields only (fields), or give " + name +
         " fewer rows (pad), which makes longer samples bad ones";
}

Status StartThreads(WorkerPool& pool) {
  try {
    pool.Start();
  } catch (const std::system_error& error) {
    return ResourceExhausted("start the threads that read remote datasets: " + std::string(error.what()) +
                             "; let the daemon have more threads (TasksMax of its unit, ulimit -u)");
  }
  return OkStatus();
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

Result<FeedOpener::BackendChoice> FeedOpener::ChooseBackend(const Peer& peer,
                                                            const OpenFeedArguments& arguments) const {
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
    const Status possible = CheckIpc(peer, arguments);
    if (!possible.ok())
      return possible.WithContext("backend: cuda-ipc was required and is not possible; auto falls back");
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

Result<std::unique_ptr<Arena>> FeedOpener::MakeArena(const OpenFeedArguments& arguments, Backend backend,
                                                     const BatchLayout& layout, uint32_t slots,
                                                     uid_t owner) const {
  if (backend != Backend::kHost)
    return parts_.devices->Make(arguments.gpu_uuid, backend, arguments.spec.sharing, layout, slots, owner);
  const bool shared = arguments.spec.sharing != Sharing::kExclusive;
  ASSIGN_OR_RETURN(std::unique_ptr<HostArena> arena,
                   HostArena::Create(layout, slots, shared, parts_.pool, owner, &parts_.quarantine));
  return std::unique_ptr<Arena>(std::move(arena));
}

void FeedOpener::AwaitMemory(const Demand& demand, const Status& lack) const {
  const auto deadline = std::chrono::steady_clock::now() + kReclaimWait;
  parts_.feeds.AwaitReclaim(deadline);
  if (demand.backend == Backend::kHost) return parts_.quarantine.AwaitNone(deadline);
  const MemoryBudget::Room room = parts_.devices->RoomFor(demand.gpu_uuid, demand.bytes, demand.user);
  // The driver lacks memory although the budget has it: other programs use the GPU, too.
  const bool of_any_user = room == MemoryBudget::Room::kOfAnyUser || lack.native_error() != 0;
  if (room != MemoryBudget::Room::kNever)
    parts_.residents->FreeIdle(demand.gpu_uuid, of_any_user ? std::nullopt : std::optional(demand.user),
                               deadline);
  parts_.devices->AwaitEmptyQuarantine(deadline);
}

uint32_t FeedOpener::RanksHere(const FeedSpec& spec) const {
  const size_t gpus = parts_.devices == nullptr ? 0 : parts_.devices->Snapshot().size();
  return std::min(spec.world_size, std::max(static_cast<uint32_t>(gpus), 1U));
}

Result<std::unique_ptr<Feed>> FeedOpener::MakeNativeFeed(const NewFeed& wanted,
                                                         std::shared_ptr<const Dataset> dataset) const {
  FeedSpec spec = wanted.arguments.spec;
  Backend backend = wanted.choice.backend;
  if (dataset->info().remote) RETURN_IF_ERROR(StartThreads(parts_.readers));
  const std::shared_ptr<const Dataset> opened = dataset;
  ASSIGN_OR_RETURN(dataset, SelectFields(std::move(dataset), spec.fields, spec.sample_path));
  ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(spec, dataset->info().samples));
  const uint32_t beside_decoders =
      WorkersBesideDecoders(parts_.workers.threads(), parts_.cpus, RanksHere(spec));
  ASSIGN_OR_RETURN(DecodeChoice decode,
                   ChooseDecode(spec, *dataset, WhyNoDecoder(wanted.arguments), beside_decoders));
  spec.decode = decode.decode;
  spec.gpu_share = decode.gpu_share;
  if (DecodesOnGpu(spec)) backend = Backend::kHost;
  std::string resident_note;
  if (spec.resident != Resident::kOff) {
    ASSIGN_OR_RETURN(std::unique_ptr<Feed> resident,
                     MakeResidentFeed(wanted, opened, dataset, sampler, &resident_note));
    if (resident != nullptr) return resident;
    spec.resident = Resident::kOff;
  }
  const bool at_client = backend != Backend::kHost || DecodesOnGpu(spec);
  const PixelOpsAt pixel_ops_at = at_client ? PixelOpsAt::kClient : PixelOpsAt::kWorker;
  ASSIGN_OR_RETURN(
      std::unique_ptr<SampleLoader> loader,
      SampleLoader::Create(std::move(dataset), spec, pixel_ops_at, {parts_.cache, wanted.owner}));
  ASSIGN_OR_RETURN(BatchLayout layout, BatchLayout::Create(loader->outputs(), spec.batch_size));
  uint32_t at_most = UINT32_MAX;
  if (DecodesOnGpu(spec)) {
    at_most = beside_decoders;
  } else if (backend != Backend::kHost && loader->only_reads()) {
    at_most = WorkersBesideCopies(parts_.workers.threads());
  }
  auto producer = std::make_unique<NativeBatchProducer>(std::move(loader), sampler, spec, layout,
                                                        parts_.workers, parts_.readers);
  return MakeFeed(wanted,
                  {spec, std::move(layout), std::move(sampler), std::move(producer), std::move(decode.note),
                   at_most, std::move(resident_note)},
                  backend, spec.slots);
}

Result<std::unique_ptr<Feed>> FeedOpener::MakeProducedFeed(const NewFeed& wanted) const {
  const FeedSpec& spec = wanted.arguments.spec;
  const ProducedDataset& dataset = *spec.dataset.produced;
  ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(spec, dataset.samples));
  std::unique_ptr<const EncodedImages> images;
  if (spec.encoded_images != 0) {
    std::vector<std::string> roots;
    if (parts_.allowed_roots) roots = parts_.allowed_roots();
    ASSIGN_OR_RETURN(images, EncodedImages::Create(spec, std::move(roots)));
  }
  ASSIGN_OR_RETURN(BatchLayout layout,
                   BatchLayout::Create(TensorsOf(dataset, images.get()), spec.batch_size));
  uint32_t slots = spec.slots;
  std::unique_ptr<Arena> staging;
  std::unique_ptr<OneOffMemory> one_off;  // which one trainer can map
  if (spec.sharing == Sharing::kExclusive)
    one_off = std::make_unique<OneOffMemory>(parts_.pool, parts_.one_off_memory, wanted.owner);
  if (spec.sharing != Sharing::kExclusive) {
    if (slots == 0) slots = parts_.default_slots;  // of both memories
    Result<std::unique_ptr<HostArena>> made = WithMemory({}, [&] {
      return HostArena::Create(layout, slots, /*shared=*/false, parts_.pool, wanted.owner,
                               &parts_.quarantine);
    });
    if (!made.ok()) return made.status().WithContext("the memory that producers of a shared feed fill");
    staging = *std::move(made);
  }
  auto producer = std::make_unique<ProcessBatchProducer>(
      wanted.id, spec, sampler, parts_.workers, std::move(staging), std::move(one_off), std::move(images));
  return MakeFeed(wanted, {spec, std::move(layout), std::move(sampler), std::move(producer)}, Backend::kHost,
                  slots);
}

Result<std::unique_ptr<Feed>> FeedOpener::MakeFeed(const NewFeed& wanted, FeedParts parts, Backend backend,
                                                   uint32_t slots) const {
  const OpenFeedArguments& arguments = wanted.arguments;
  const uid_t owner = wanted.owner;
  const bool chosen = slots != 0;
  const BatchLayout& layout = parts.layout;
  const bool on_gpu =
      backend != Backend::kHost || DecodesOnGpu(parts.spec) || parts.spec.resident == Resident::kOn;
  const bool packed =
      !on_gpu && std::ranges::any_of(layout.tensors, [](const auto& tensor) { return tensor.spec.packed(); });
  const uint64_t of_user = std::min(parts_.pool.capacity_bytes(), parts_.pool.max_per_user());
  const bool more = on_gpu || layout.slot_stride <= of_user / kSmallPart / kTimesMore / parts_.default_slots;
  if (!chosen) slots = SlotsFor(parts_.default_slots, layout.slot_stride, more, packed ? kTimesPacked : 1);
  // Lists are made and used up in microseconds: one wake-up of the daemon is to serve many.
  if (!chosen && parts.spec.resident == Resident::kOn && layout.slot_stride * kMaxSlots <= kListBytes)
    slots = kMaxSlots;
  // The minimum is the last resort, so that a restarted trainer gets as many slots as before.
  const uint32_t least = chosen ? slots : std::min(slots, parts_.default_slots);
  Result<std::unique_ptr<Arena>> arena =
      WithMemory({backend, arguments.gpu_uuid, layout.slot_stride * least, owner},
                 [&] { return MakeArena(arguments, backend, layout, slots, owner); });
  const auto lacks_memory = [&] { return arena.status().code() == Code::kResourceExhausted; };
  if (lacks_memory() && least < slots) arena = MakeArena(arguments, backend, layout, slots = least, owner);
  if (!arena.ok()) {
    const std::string rows = lacks_memory() ? PackedMemory(layout) : "";
    return Status(arena.status().code(), arena.status().message() + rows, arena.status().native_error())
        .WithContext("a feed of " + std::to_string(slots) + " slots with batches of " +
                     std::to_string(layout.batch_size));
  }
  parts.id = wanted.id;
  parts.owner = owner;
  parts.tracer = &parts_.tracer;
  parts.arena = *std::move(arena);
  return std::make_unique<Feed>(std::move(parts));
}

Status FeedOpener::CheckRoom(const Peer& peer, const OpenFeedArguments& arguments, bool replaces) const {
  if (peer.pid == 0) {
    return FailedPrecondition(
        "open a feed: the client's process is not visible to the daemon, so its end could not be seen; let "
        "both share a PID namespace (in Kubernetes: hostPID: true for the daemon)");
  }
  RETURN_IF_ERROR(parts_.sessions.CheckRoom(peer.uid, arguments.spec.group_size, replaces));
  return CheckDescriptorRoom(parts_.sessions.limit(), MaxFds(), CountOpenFds);
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
    if (ends_first) return OpenFeedOutcome(ReplacedEndsFirst{});
  }
  ASSIGN_OR_RETURN(const BackendChoice choice, ChooseBackend(peer, arguments));
  const Result<std::shared_ptr<Session>> session = Join(peer, arguments, choice, std::move(dataset));
  if (!session.ok()) {
    // If the daemon is stopping for the same reason, the client should try the next daemon.
    RETURN_IF_ERROR(parts_.sessions.CheckOpen());
    return session.status();
  }
  if (*session == nullptr) return OpenFeedOutcome(DatasetNeeded{});
  RETURN_IF_ERROR(parts_.sessions.Admit(*session, replaced != nullptr));
  return OpenFeedOutcome(*session);
}

Result<std::shared_ptr<Session>> FeedOpener::Join(const Peer& peer, const OpenFeedArguments& arguments,
                                                  const BackendChoice& choice,
                                                  std::shared_ptr<const Dataset> dataset) const {
  // Opened before the memory is allocated, so that every process that gets memory is watched.
  std::optional<ClientProcess> process;
  if (choice.backend != Backend::kHost) {
    ASSIGN_OR_RETURN(process, ClientProcess::Open(peer.pid));
  }
  FeedTable::Make make;
  if (arguments.spec.batcher || arguments.spec.dataset.produced || dataset != nullptr) {
    make = [&](uint64_t feed_id) {
      const NewFeed wanted{feed_id, peer.uid, arguments, choice};
      if (arguments.spec.batcher) return MakeBatcherFeed(wanted);
      if (arguments.spec.dataset.produced) return MakeProducedFeed(wanted);
      return MakeNativeFeed(wanted, std::move(dataset));
    };
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Session> session, parts_.feeds.Join(peer.uid, arguments.spec, make));
  if (session == nullptr) return session;
  Feed& feed = *session->feed;
  const bool decodes = DecodesOnGpu(feed.spec());
  if (const std::string why = WhyNoDecoder(arguments); decodes && !why.empty())
    return FailedPrecondition("decode: the group's batches are decoded on its members' GPUs, and " + why);
  session->resident = feed.producer().resident();
  if (session->resident != nullptr) {
    const Status possible = CheckResident(arguments, choice);
    if (!possible.ok()) return possible.WithContext("resident: the group's samples are kept on a GPU");
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
  ASSIGN_OR_RETURN(session->part,
                   WithMemory({feed.arena().backend(), arguments.gpu_uuid, feed.arena().bytes(), peer.uid},
                              [&] { return feed.arena().PartOn(arguments.gpu_uuid); }));
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
