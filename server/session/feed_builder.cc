// SPDX-License-Identifier: Apache-2.0
#include "server/session/feed_builder.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "common/base/byte_size.h"
#include "common/base/quote.h"
#include "common/spec/names.h"
#include "server/dataset/selected_fields.h"
#include "server/loading/gpu_decode_program.h"

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

// Of the workers that several ranks share, each rank may use so many at least, since the others may be
// elsewhere. They pass on more images than a GPU decodes.
constexpr uint32_t kLeastBesideDecoders = 4;

constexpr uint64_t kListBytes = uint64_t{4} << 20;  // of the lists of a feed with the most slots

uint32_t SlotsFor(uint64_t default_slots, uint64_t slot_stride, bool more, uint64_t times = 1) {
  const uint64_t least = more ? default_slots * kTimesMore : default_slots;
  const uint64_t slots = std::clamp(times * kSmallArenaBytes / slot_stride, least, 4 * default_slots);
  return static_cast<uint32_t>(std::min<uint64_t>(slots, kMaxSlots));
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

std::string FeedBuilder::WhyNoDecoder() const {
  if (arguments_.gpu_uuid.empty()) return "the client names no GPU";
  if (spec_.backend != Backend::kAuto) {
    return std::string("the spec asks for the backend ") + BackendName(spec_.backend) +
           ", and it takes the backend auto";
  }
  if (arguments_.decodes_on_gpu) return "";
  return arguments_.no_gpu_decoder.empty() ? "the client has no decoder for it"
                                           : EscapeUnprintable(arguments_.no_gpu_decoder);
}

void FeedBuilder::AwaitMemory(Backend backend, uint64_t bytes, const Status& lack) const {
  const auto deadline = std::chrono::steady_clock::now() + kReclaimWait;
  parts_.feeds.AwaitReclaim(deadline);
  if (backend == Backend::kHost) return parts_.quarantine.AwaitNone(deadline);
  const MemoryBudget::Room room = parts_.devices->RoomFor(arguments_.gpu_uuid, bytes, owner_);
  // The driver lacks memory although the budget has it: other programs use the GPU, too.
  const bool of_any_user = room == MemoryBudget::Room::kOfAnyUser || lack.native_error() != 0;
  if (room != MemoryBudget::Room::kNever)
    parts_.residents->FreeIdle(arguments_.gpu_uuid, of_any_user ? std::nullopt : std::optional(owner_),
                               deadline);
  parts_.devices->AwaitEmptyQuarantine(deadline);
}

Result<const Arena*> FeedBuilder::PartOf(Feed& feed) const {
  Arena& arena = feed.arena();
  return WithMemory(arena.backend(), arena.bytes(), [&] { return arena.PartOn(arguments_.gpu_uuid); });
}

Result<std::unique_ptr<Feed>> FeedBuilder::Make(uint64_t id, std::shared_ptr<const Dataset> dataset) {
  id_ = id;
  if (spec_.batcher) return MakeBatcherFeed();
  if (spec_.dataset.produced) return MakeProducedFeed();
  return MakeNativeFeed(std::move(dataset));
}

uint32_t FeedBuilder::RanksHere() const {
  // All trainers of a group are on this host, so the other ranks' are elsewhere. Other feeds need no count.
  if (spec_.sharing != Sharing::kExclusive || spec_.decode == Decode::kCpu) return 1;
  const size_t gpus = parts_.devices == nullptr ? 0 : parts_.devices->Snapshot().size();
  return std::min(spec_.world_size, std::max(static_cast<uint32_t>(gpus), 1U));
}

Result<std::unique_ptr<Feed>> FeedBuilder::MakeNativeFeed(std::shared_ptr<const Dataset> dataset) const {
  FeedSpec spec = spec_;
  Backend backend = choice_.backend;
  if (dataset->info().remote) RETURN_IF_ERROR(StartThreads(parts_.readers));
  const std::shared_ptr<const Dataset> opened = dataset;
  ASSIGN_OR_RETURN(dataset, SelectFields(std::move(dataset), spec.fields, spec.sample_path));
  ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(spec, dataset->info().samples));
  const uint32_t beside_decoders = WorkersBesideDecoders(parts_.workers.threads(), parts_.cpus, RanksHere());
  ASSIGN_OR_RETURN(DecodeChoice decode, ChooseDecode(spec, *dataset, WhyNoDecoder(), beside_decoders));
  spec.decode = decode.decode;
  spec.gpu_share = decode.gpu_share;
  if (DecodesOnGpu(spec)) backend = Backend::kHost;
  std::string resident_note;
  if (spec.resident != Resident::kOff) {
    ASSIGN_OR_RETURN(std::unique_ptr<Feed> resident,
                     MakeResidentFeed(opened, dataset, sampler, &resident_note));
    if (resident != nullptr) return resident;
    spec.resident = Resident::kOff;
  }
  const bool at_client = backend != Backend::kHost || DecodesOnGpu(spec);
  const PixelOpsAt pixel_ops_at = at_client ? PixelOpsAt::kClient : PixelOpsAt::kWorker;
  ASSIGN_OR_RETURN(std::unique_ptr<SampleLoader> loader,
                   SampleLoader::Create(std::move(dataset), spec, pixel_ops_at, {parts_.cache, owner_}));
  ASSIGN_OR_RETURN(BatchLayout layout, BatchLayout::Create(loader->outputs(), spec.batch_size));
  uint32_t at_most = UINT32_MAX;
  if (DecodesOnGpu(spec)) {
    at_most = std::max(
        beside_decoders,
        std::min(WorkersBesideDecoders(parts_.workers.threads(), parts_.cpus, 1), kLeastBesideDecoders));
  } else if (backend != Backend::kHost && loader->only_reads()) {
    at_most = WorkersBesideCopies(parts_.workers.threads());
  }
  auto producer = std::make_unique<NativeBatchProducer>(std::move(loader), sampler, spec, layout,
                                                        parts_.workers, parts_.readers);
  return MakeFeed({spec, std::move(layout), std::move(sampler), std::move(producer), std::move(decode.note),
                   at_most, std::move(resident_note)},
                  backend, spec.slots);
}

Result<std::unique_ptr<Feed>> FeedBuilder::MakeProducedFeed() const {
  const ProducedDataset& dataset = *spec_.dataset.produced;
  ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(spec_, dataset.samples));
  std::unique_ptr<const EncodedImages> images;
  if (spec_.encoded_images != 0) {
    std::vector<std::string> roots;
    if (parts_.allowed_roots) roots = parts_.allowed_roots();
    ASSIGN_OR_RETURN(images, EncodedImages::Create(spec_, std::move(roots)));
  }
  ASSIGN_OR_RETURN(BatchLayout layout,
                   BatchLayout::Create(TensorsOf(dataset, images.get()), spec_.batch_size));
  uint32_t slots = spec_.slots;
  std::unique_ptr<Arena> staging;
  std::unique_ptr<OneOffMemory> one_off;  // which one trainer can map
  if (spec_.sharing == Sharing::kExclusive) {
    one_off = std::make_unique<OneOffMemory>(parts_.pool, parts_.one_off_memory, owner_);
  } else {
    if (slots == 0) slots = parts_.default_slots;  // of both memories
    const auto make = [&] {
      return HostArena::Create(layout, slots, /*shared=*/false, parts_.pool, owner_, &parts_.quarantine);
    };
    ASSIGN_OR_RETURN(
        staging,
        WithMemory(Backend::kHost, 0, make).WithContext("the memory that producers of a shared feed fill"));
  }
  auto producer = std::make_unique<ProcessBatchProducer>(
      id_, spec_, sampler, parts_.workers, std::move(staging), std::move(one_off), std::move(images));
  return MakeFeed({spec_, std::move(layout), std::move(sampler), std::move(producer)}, Backend::kHost, slots);
}

Result<std::unique_ptr<Feed>> FeedBuilder::MakeFeed(FeedParts parts, Backend backend, uint32_t slots) const {
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
  const auto make_arena = [&]() -> Result<std::unique_ptr<Arena>> {
    if (backend != Backend::kHost)
      return parts_.devices->Make(arguments_.gpu_uuid, backend, spec_.sharing, layout, slots, owner_);
    const bool shared = spec_.sharing != Sharing::kExclusive;
    return HostArena::Create(layout, slots, shared, parts_.pool, owner_, &parts_.quarantine);
  };
  Result<std::unique_ptr<Arena>> arena = WithMemory(backend, layout.slot_stride * least, make_arena);
  const auto lacks_memory = [&] { return arena.status().code() == Code::kResourceExhausted; };
  if (lacks_memory() && least < slots) {
    slots = least;
    arena = make_arena();
  }
  if (!arena.ok()) {
    const std::string rows = lacks_memory() ? PackedMemory(layout) : "";
    return Status(arena.status().code(), arena.status().message() + rows, arena.status().native_error())
        .WithContext("a feed of " + std::to_string(slots) + " slots with batches of " +
                     std::to_string(layout.batch_size));
  }
  parts.id = id_;
  parts.owner = owner_;
  parts.tracer = &parts_.tracer;
  parts.arena = *std::move(arena);
  return std::make_unique<Feed>(std::move(parts));
}

Result<std::unique_ptr<Feed>> FeedBuilder::MakeBatcherFeed() const {
  std::shared_ptr<const Dataset> dataset = MakeRequestDataset(spec_);
  ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(spec_, dataset->info().samples));
  const PixelOpsAt pixel_ops_at =
      choice_.backend == Backend::kHost ? PixelOpsAt::kWorker : PixelOpsAt::kClient;
  ASSIGN_OR_RETURN(std::unique_ptr<SampleLoader> loader,
                   SampleLoader::Create(std::move(dataset), spec_, pixel_ops_at));
  ASSIGN_OR_RETURN(BatchLayout layout, BatchLayout::Create(loader->outputs(), spec_.batch_size));
  auto producer = std::make_unique<RequestBatchProducer>(*spec_.batcher, std::move(loader), parts_.workers);
  return MakeFeed({spec_, std::move(layout), std::move(sampler), std::move(producer)}, choice_.backend,
                  spec_.slots);
}

}  // namespace pinfeed
