// SPDX-License-Identifier: Apache-2.0
#include "client/src/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "client/src/client_log.h"
#include "common/os/futex.h"

namespace pinfeed {
namespace {

// Time for a stream to reach its last release after the session closed: more than any training step takes.
constexpr std::chrono::seconds kSettle(10);

// For a process that is ending, which closes its descriptors one by one.
constexpr std::chrono::milliseconds kEnding(200);

// Between checks that an evicting daemon is still there.
constexpr std::chrono::milliseconds kLimitLook(50);

// Indexes of the descriptors in the welcome, as common/wire/shared_page.h lists them.
enum WelcomeFd : size_t { kPublishFd, kReleaseFd, kDoorbellFd, kArenaFd };

Status BrokenSession(const std::string& what) {
  return Internal("the daemon's session is unusable: " + what +
                  "; are pinfeedd and libpinfeed of the same version?");
}

Result<Mapping> MapChecked(const UniqueFd& fd, uint64_t bytes, Access access, bool populate,
                           const char* name) {
  const Status sealed = CheckSealedSize(fd.get(), bytes);
  if (!sealed.ok()) return BrokenSession(std::string(name) + ": " + sealed.message());
  Result<Mapping> mapping = Mapping::Map(fd.get(), bytes, access, populate);
  if (!mapping.ok()) return mapping.status().WithContext(name);
  return mapping;
}

Status CheckDoorbell(const UniqueFd& fd) {
  // A release rings it and must never block.
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0) return ErrnoStatus("read the doorbell's flags", errno);
  if ((flags & O_NONBLOCK) == 0) return BrokenSession("the doorbell is a blocking descriptor");
  return OkStatus();
}

Status CheckPublishPage(const PublishPage& page, uint32_t slot_count) {
  if (page.magic != kPublishPageMagic)
    return BrokenSession("the publish page does not start with its magic number");
  if (page.version != kProtocolVersion) {
    return BrokenSession("the publish page has version " + std::to_string(page.version) + ", expected " +
                         std::to_string(kProtocolVersion));
  }
  if (page.slot_count != slot_count) {
    return BrokenSession("the publish page is for " + std::to_string(page.slot_count) +
                         " slots, the offer for " + std::to_string(slot_count));
  }
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<Session>> Session::Attach(FeedOffer offer, int ordinal, SteadyTime deadline,
                                                 bool* backend_unusable) {
  *backend_unusable = false;
  std::vector<UniqueFd> fds;
  const size_t fd_count = offer.backend == Backend::kCudaIpc ? kLifelineFdsDevice : kLifelineFdsHost;
  ASSIGN_OR_RETURN(Lifeline lifeline,
                   Lifeline::Attach(offer.lifeline_path, offer.token, fd_count, deadline, &fds));
  Result<Memory> memory = Map(offer, ordinal, fds, backend_unusable);
  if (memory.ok()) {
    return std::shared_ptr<Session>(new Session(std::move(offer), ordinal, std::move(lifeline),
                                                *std::move(memory), std::move(fds[kDoorbellFd])));
  }
  // The handles of a daemon that died are invalid, even if its sockets are not closed yet.
  if (*backend_unusable &&
      lifeline.WaitForHangUp(std::min(deadline, std::chrono::steady_clock::now() + kEnding))) {
    *backend_unusable = false;
    return Unavailable("the daemon went away: " + memory.status().message());
  }
  // Nothing stays mapped.
  lifeline.SayBye();
  lifeline.WaitForHangUp(deadline);
  return memory.status();
}

Result<Session::Memory> Session::Map(const FeedOffer& offer, int ordinal, std::vector<UniqueFd>& fds,
                                     bool* backend_unusable) {
  Memory memory;
  RETURN_IF_ERROR(CheckDoorbell(fds[kDoorbellFd]));
  ASSIGN_OR_RETURN(memory.publish,
                   MapChecked(fds[kPublishFd], kPublishPageBytes, Access::kReadOnly, true, "publish page"));
  RETURN_IF_ERROR(
      CheckPublishPage(*reinterpret_cast<const PublishPage*>(memory.publish.data()), offer.slot_count));
  ASSIGN_OR_RETURN(memory.release,
                   MapChecked(fds[kReleaseFd], kReleasePageBytes, Access::kReadWrite, true, "release page"));
  if (offer.backend == Backend::kHost) {
    const Access access = offer.read_only ? Access::kReadOnly : Access::kReadWrite;
    // Not populated: that would delay the first batch for pages that are needed later.
    ASSIGN_OR_RETURN(memory.arena, MapChecked(fds[kArenaFd], offer.arena_bytes, access, false, "arena"));
    return memory;
  }
  auto* const page = reinterpret_cast<ReleasePage*>(memory.release.data());
  UniqueFd fd = offer.backend == Backend::kVmmFd ? std::move(fds[kArenaFd]) : UniqueFd();
  Result<std::unique_ptr<DeviceSlots>> slots =
      MapDeviceSlots(offer, ordinal, std::move(fd), page, kReleasePageBytes);
  *backend_unusable = !slots.ok();
  if (!slots.ok()) return slots.status();
  memory.device = *std::move(slots);
  return memory;
}

Session::Session(FeedOffer offer, int ordinal, Lifeline lifeline, Memory memory, UniqueFd doorbell)
    : offer_(std::move(offer)),
      lifeline_(std::move(lifeline)),
      ordinal_(ordinal),
      publish_(std::move(memory.publish)),
      release_(std::move(memory.release)),
      arena_(std::move(memory.arena)),
      device_(std::move(memory.device)),
      doorbell_(std::move(doorbell)) {}

Session::~Session() {
  // In a forked child the socket and the GPU's context belong to the parent. A bye would end the parent's
  // session.
  if (!fork_guard_.InCreatorProcess()) {
    (void)device_.release();
    return;
  }
  // Without a bye the daemon keeps its memory until this process ends.
  if (Unmap(std::chrono::steady_clock::now() + kSettle)) lifeline_.SayBye();
}

bool Session::Unmap(SteadyTime deadline) {
  arena_ = Mapping();
  if (device_ == nullptr) return true;
  const Status unmapped = device_->Unmap(deadline);
  if (unmapped.ok()) {
    device_.reset();
    return true;
  }
  // Without a bye the daemon also keeps what this process has mapped and gives it to no other feed.
  if (unmapped.code() != Code::kCancelled) {  // the process is not exiting
    ClientLog(PF_LOG_WARNING, "the slots of a closed feed cannot be returned: " + unmapped.message() +
                                  "; the daemon reclaims their memory when this process ends");
  }
  (void)device_.release();
  (void)new Mapping(std::move(release_));  // leaked on purpose: the GPU will still write there
  lifeline_ = Lifeline();                  // closed, so that no bye is sent
  return false;
}

void Session::CloseAndWait(SteadyTime deadline) {
  // A trainer's stream may be waiting for other ranks; giving up would leak the arena.
  if (!Unmap(std::max(deadline, std::chrono::steady_clock::now() + kSettle))) return;
  lifeline_.SayBye();
  lifeline_.WaitForHangUp(deadline);
  lifeline_ = Lifeline();  // closed, so that the destructor sends no bye
}

bool Session::HasNext() const {
  return publish_page().published.load(std::memory_order_acquire) !=
         next_sequence_.load(std::memory_order_relaxed);
}

Result<bool> Session::Take(BatchDescriptor* batch) {
  const PublishPage& page = publish_page();
  const uint64_t expected = next_sequence_.load(std::memory_order_relaxed);
  const uint64_t published = page.published.load(std::memory_order_acquire);
  if (published == expected) return false;
  // The count is more than the ring holds ahead, or went backwards: the entry is not the expected one.
  if (published - expected > kMaxSlots) {
    return BrokenSession("the count of batches is " + std::to_string(published) + " where " +
                         std::to_string(expected) + " were taken");
  }
  const BatchDescriptor copy =
      page.ring[expected % kMaxSlots];  // copied before the check: the page may change at any time
  RETURN_IF_ERROR(Check(copy, expected));
  // Orders against an eviction: either the daemon sees that this batch is held, or the limit is seen here.
  release_page().taken.store(expected + 1, std::memory_order_seq_cst);
  if (page.state.load(std::memory_order_seq_cst) == static_cast<uint32_t>(FeedState::kEvicted) &&
      expected >= AwaitLimit(SteadyTime::max()))
    return Failure();
  next_sequence_.store(expected + 1, std::memory_order_seq_cst);  // orders against Release, see there
  slot_held_[copy.slot].store(true, std::memory_order_relaxed);
  held_.fetch_add(1, std::memory_order_relaxed);
  *batch = copy;
  return true;
}

void Session::Leave(SteadyTime deadline) {
  lifeline_.SayLeave();
  (void)AwaitLimit(deadline);
}

uint64_t Session::AwaitLimit(SteadyTime deadline) const {
  for (;;) {
    const uint32_t seen = WakeWord();
    const uint64_t limit = publish_page().limit.load(std::memory_order_acquire);
    // A daemon that is gone fills no more batches.
    const auto left = deadline - std::chrono::steady_clock::now();
    if (limit != kUnlimited || HungUp() || left <= left.zero()) return limit;
    Sleep(seen, std::min<std::chrono::nanoseconds>(left, kLimitLook));
  }
}

Status Session::Check(const BatchDescriptor& batch, uint64_t expected) const {
  const std::string name = "batch " + std::to_string(expected);
  if (batch.sequence != expected)
    return BrokenSession(name + " is described as number " + std::to_string(batch.sequence));
  if (batch.slot >= offer_.slot_count)
    return BrokenSession(name + " lies in slot " + std::to_string(batch.slot) + " of " +
                         std::to_string(offer_.slot_count));
  if (batch.samples > offer_.layout.batch_size) {
    return BrokenSession(name + " has " + std::to_string(batch.samples) + " samples where a slot holds " +
                         std::to_string(offer_.layout.batch_size));
  }
  if (slot_held_[batch.slot].load(std::memory_order_acquire)) {
    return BrokenSession(name + " lies in slot " + std::to_string(batch.slot) +
                         ", which this process still holds");
  }
  return OkStatus();
}

FeedState Session::state() const {
  return static_cast<FeedState>(publish_page().state.load(std::memory_order_acquire));
}

Status Session::Failure() const {
  const PublishPage& page = publish_page();
  const uint32_t bytes = std::min(page.error_bytes, kMaxErrorBytes);
  const uint32_t code = page.error_code;
  const bool known = code > 0 && code <= static_cast<uint32_t>(Code::kUnauthenticated);
  return {known ? static_cast<Code>(code) : Code::kInternal, std::string(page.error_text, bytes)};
}

uint32_t Session::WakeWord() const {
  return publish_page().wake.load(std::memory_order_acquire);
}

void Session::Sleep(uint32_t seen, std::chrono::nanoseconds at_most) const {
  FutexWait(publish_page().wake, seen, at_most);
}

void Session::ClearHeld(const BatchDescriptor& batch) {
  slot_held_[batch.slot].store(false, std::memory_order_release);
}

Status Session::ReleaseOn(const BatchDescriptor& batch, void* stream) {
  // Before the release word: once the daemon sees that word, it may publish the slot again.
  ClearHeld(batch);
  Status released = device_->Release(batch, stream);
  if (released.code() == Code::kCancelled) return released;  // the process is exiting, and the feed with it
  if (!released.ok()) {
    // Logged, because a tensor's destructor often calls this and cannot return an error.
    ClientLog(PF_LOG_WARNING, "a slot cannot be returned: " + released.message() +
                                  "; it is lost to this feed, and no batch comes once all slots are lost");
    return released;
  }
  held_.fetch_sub(1, std::memory_order_release);  // last: afterwards CloseAndWait may unmap
  return OkStatus();
}

Status Session::Write(const BatchDescriptor& batch, void* const* outputs, void* stream) {
  if (device_ == nullptr) {
    for (size_t i = 0; i < offer_.outputs.size(); ++i) {
      const OfferedOutput& output = offer_.outputs[i];
      if (output.is_extents) continue;
      if (output.spec.extents) {
        RETURN_IF_ERROR(GatherRows(batch, output, outputs[i], outputs[*output.spec.extents]));
        continue;
      }
      const TensorPlace& source = offer_.layout.tensors[output.tensor];
      const size_t bytes = source.sample_bytes * batch.samples;
      if (bytes > 0) std::memcpy(outputs[i], slot(batch.slot) + source.offset, bytes);
    }
    Release(batch);
    return OkStatus();
  }
  ClearHeld(batch);
  RETURN_IF_ERROR(device_->Write(batch, outputs, stream));
  held_.fetch_sub(1, std::memory_order_release);
  return OkStatus();
}

Result<std::vector<RowExtent>> Session::Extents(const BatchDescriptor& batch,
                                                const OfferedOutput& output) const {
  const TensorSpec& packed = offer_.layout.tensors[output.tensor].spec;
  const uint64_t offset = offer_.layout.tensors[*packed.extents].offset;
  std::vector<RowExtent> extents(batch.samples);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(extents));
  if (device_ != nullptr) {
    if (!bytes.empty())
      RETURN_IF_ERROR(device_->Read(batch.slot * offer_.layout.slot_stride + offset, bytes));
  } else {
    std::copy_n(slot(batch.slot) + offset, bytes.size(), bytes.begin());
  }
  const uint64_t rows = offer_.layout.batch_size * static_cast<uint64_t>(packed.shape[0]);
  uint64_t sum = 0;  // of all: rows of samples do not overlap
  for (const RowExtent& extent : extents) {
    const auto first = static_cast<uint64_t>(extent.first);
    const auto count = static_cast<uint64_t>(extent.count);
    if (first > rows || count > rows - first || (sum += count) > rows)
      return BrokenSession("the rows of tensor '" + packed.name + "' lie outside of it");
  }
  return extents;
}

Status Session::RowOffsets(const BatchDescriptor& batch, const OfferedOutput& output,
                           std::span<int64_t> offsets) const {
  ASSIGN_OR_RETURN(const std::vector<RowExtent> extents, Extents(batch, output));
  offsets[0] = 0;
  for (size_t i = 0; i < extents.size(); ++i) offsets[i + 1] = offsets[i] + extents[i].count;
  return OkStatus();
}

Status Session::GatherRows(const BatchDescriptor& batch, const OfferedOutput& output, void* rows,
                           void* extents) const {
  ASSIGN_OR_RETURN(const std::vector<RowExtent> from, Extents(batch, output));
  const TensorPlace& source = offer_.layout.tensors[output.tensor];
  const uint64_t row_bytes = source.spec.RowBytes();
  const std::byte* const first = slot(batch.slot) + source.offset;
  auto* out = static_cast<std::byte*>(rows);
  RowExtent extent;
  for (size_t i = 0; i < from.size(); ++i) {
    const uint64_t bytes = static_cast<uint64_t>(from[i].count) * row_bytes;
    out = std::copy_n(first + static_cast<uint64_t>(from[i].first) * row_bytes, bytes, out);
    extent.first += extent.count;
    extent.count = from[i].count;
    std::memcpy(static_cast<std::byte*>(extents) + i * sizeof extent, &extent, sizeof extent);
  }
  return OkStatus();
}

void Session::Release(const BatchDescriptor& batch) {
  ClearHeld(batch);
  // Sequentially consistent, against the daemon's "set starved, then read the words": one of the two sees the
  // other's store.
  release_page().slots[batch.slot].generation.store(batch.generation, std::memory_order_seq_cst);
  // Rings only when fewer than half of the slots are ahead of the trainer, since ringing for several slots at
  // once wakes the daemon less often. BeginWait rings before the trainer sleeps, and sees this word if the
  // count of taken batches read here is stale. Sessions that share slots always ring, because the others may
  // be waiting for this one.
  const uint64_t ahead = publish_page().published.load(std::memory_order_relaxed) -
                         next_sequence_.load(std::memory_order_seq_cst);
  if (offer_.read_only || ahead <= offer_.slot_count / 2) RingIfStarved();
  held_.fetch_sub(1, std::memory_order_release);  // last: afterwards CloseAndWait may unmap
}

void Session::RingIfStarved() {
  if (publish_page().starved.load(std::memory_order_seq_cst) == 0) return;
  const uint64_t one = 1;
  // EAGAIN means that the doorbell is ringing already.
  [[maybe_unused]] const ssize_t rung = ::write(doorbell_.get(), &one, sizeof(one));
}

void Session::BeginWait(uint64_t now_ns) {
  RingIfStarved();
  release_page().waiting_since_ns.store(now_ns, std::memory_order_relaxed);
}

void Session::EndWait(uint64_t waited_ns) {
  wait_ns_ += waited_ns;
  release_page().wait_ns.store(wait_ns_, std::memory_order_relaxed);
  release_page().waiting_since_ns.store(0, std::memory_order_relaxed);
}

void Session::CountCopied() {
  release_page().copied.store(++copied_, std::memory_order_relaxed);
}

}  // namespace pinfeed
