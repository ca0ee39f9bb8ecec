// SPDX-License-Identifier: Apache-2.0
#include "server/memory/host_arena.h"

#include <algorithm>
#include <string>

#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/log_pace.h"
#include "common/base/raise_to.h"
#include "common/base/random.h"
#include "common/base/round_up.h"
#include "common/wire/shared_page.h"

namespace pinfeed {
namespace {

constexpr uint64_t kSmallestPageBytes = 4096;

}  // namespace

Result<std::unique_ptr<HostArena>> HostArena::Create(const BatchLayout& layout, uint32_t slot_count,
                                                     bool shared, MemoryBudget& pool,
                                                     std::optional<uid_t> user,
                                                     HostMemoryQuarantine* quarantine) {
  if (slot_count == 0 || slot_count > kMaxSlots) {
    return InvalidArgument("slots: " + std::to_string(slot_count) + " is not within 1.." +
                           std::to_string(kMaxSlots));
  }
  uint64_t bytes = 0;
  if (!CheckedMul(layout.slot_stride, slot_count, &bytes))
    return InvalidArgument("slots: the arena's size does not fit 64 bits");
  const std::string what =
      "arena of " + std::to_string(slot_count) + " slots of " + ByteSize(layout.slot_stride);

  ASSIGN_OR_RETURN(BudgetLease lease, pool.Reserve(bytes, user).WithContext(what));
  ASSIGN_OR_RETURN(HostMemoryLedger::Reservation reservation,
                   HostMemoryLedger::ForThisProcess().Reserve(bytes).WithContext(what));
  ASSIGN_OR_RETURN(const UniqueFd made, CreateEmptyMemfd("pinfeed-arena", bytes).WithContext(what));
  ASSIGN_OR_RETURN(UniqueFd fd, ReopenMemfd(made.get(), Access::kReadWrite).WithContext(what));
  const Access access = shared ? Access::kReadOnly : Access::kReadWrite;
  ASSIGN_OR_RETURN(UniqueFd client_fd, ReopenMemfd(made.get(), access).WithContext(what));
  // The daemon's writable mapping is created before the seal and stays writable. Workers fault in its pages
  // in parallel on each slot's first use.
  ASSIGN_OR_RETURN(Mapping memory,
                   Mapping::Map(fd.get(), bytes, Access::kReadWrite, /*populate=*/false).WithContext(what));
  RETURN_IF_ERROR(shared ? SealAgainstNewWriters(fd.get()) : SealAgainstSeals(fd.get()));

  return std::unique_ptr<HostArena>(
      new HostArena(RandomBytes<ArenaId>(), slot_count, layout, std::move(lease), std::move(reservation),
                    std::move(fd), std::move(client_fd), std::move(memory), quarantine, shared));
}

HostArena::~HostArena() {
  client_fd_.reset();
  if (quarantine_ == nullptr || HasNoOtherUser(fd_.get())) return;
  static LogPace pace(5);
  if (const auto more = pace.Admit()) {
    spdlog::info(
        "{} of a feed that has ended are still mapped by a process; they stay charged until it unmaps them{}",
        ByteSize(lease_.bytes()), *more);
  }
  memory_ = Mapping();
  quarantine_->Add(std::move(fd_), std::move(lease_));
}

Status HostArena::Prepare(const Piece& piece, uint32_t begin, uint32_t end) {
  RETURN_IF_ERROR(CheckNothingGivenBack());
  if (end <= slots_[piece.slot].allocated.load(std::memory_order_acquire)) return OkStatus();
  const Status claimed = Claim(piece.slot);
  if (!claimed.ok()) return claimed.WithContext("slot " + std::to_string(piece.slot) + " of an arena");
  const Status packed = PreparePacked(piece.slot);
  if (packed.code() == Code::kInvalidArgument) return AllocateSlot(piece.slot);
  if (!packed.ok()) return packed.WithContext("slot " + std::to_string(piece.slot) + " of an arena");
  for (size_t t = 0; t < layout().tensors.size(); ++t) {
    if (layout().tensors[t].spec.packed()) continue;
    const uint64_t sample_bytes = layout().tensors[t].sample_bytes;
    std::byte* const from = FillAddress(piece, t) + (begin - piece.begin) * sample_bytes;
    const uint64_t bytes = (end - begin) * sample_bytes;
    PrepareHugePages(from, bytes, FillAddress(piece, t) + (piece.end - piece.begin) * sample_bytes);
    const Status populated = PopulateForWriting(from, bytes);
    if (populated.code() == Code::kInvalidArgument) return AllocateSlot(piece.slot);
    if (!populated.ok()) return populated.WithContext("slot " + std::to_string(piece.slot) + " of an arena");
  }
  RaiseTo(end, slots_[piece.slot].prepared, std::memory_order_acq_rel);
  // What is in use already counts only once, also if the slot is not delivered for a long time.
  if (begin <= slots_[piece.slot].allocated.load(std::memory_order_acquire)) SetAllocated(piece.slot, end);
  return OkStatus();
}

Status HostArena::PreparePacked(uint32_t slot) {
  if (slots_[slot].packed_ready.load(std::memory_order_acquire)) return OkStatus();
  const MutexLock lock(mutex_);
  if (slots_[slot].packed_ready.load(std::memory_order_relaxed)) return OkStatus();
  for (const TensorPlace& place : layout().tensors) {
    if (!place.spec.packed()) continue;
    RETURN_IF_ERROR(PopulateForWriting(memory_.data() + slot * slot_stride() + place.offset,
                                       layout().batch_size * place.sample_bytes));
  }
  slots_[slot].packed_ready.store(true, std::memory_order_release);
  return OkStatus();
}

void HostArena::PrepareHugePages(const std::byte* begin, uint64_t bytes, const std::byte* end_of_piece) {
  const auto offset = static_cast<uint64_t>(begin - memory_.data());
  const uint64_t first = offset / kHugePageBytes;
  const uint64_t end = std::min<uint64_t>(PartsOf(offset + bytes, kHugePageBytes), huge_page_states_.size());
  bool wait = false;
  for (uint64_t page = first; page < end; ++page) wait |= !MakeHugePage(page);
  if (!wait) return;
  // Another thread makes one, for a sample beside these. The next one can be made meanwhile.
  if (end < huge_page_states_.size() && memory_.data() + (end + 1) * kHugePageBytes <= end_of_piece)
    MakeHugePage(end);
  for (uint64_t page = first; page < end; ++page)
    huge_page_states_[page].wait(HugePage::kBeingMade, std::memory_order_acquire);
}

bool HostArena::MakeHugePage(uint64_t page) {
  std::atomic<HugePage>& state = huge_page_states_[page];
  HugePage was = state.load(std::memory_order_acquire);
  if (was != HugePage::kNone || !huge_pages_.load(std::memory_order_relaxed))
    return was != HugePage::kBeingMade;
  if (!state.compare_exchange_strong(was, HugePage::kBeingMade, std::memory_order_acquire))
    return was != HugePage::kBeingMade;
  if (!AllocateHugePage(memory_.data() + page * kHugePageBytes)) huge_pages_ = false;
  state.store(HugePage::kTried, std::memory_order_release);
  state.notify_all();
  return true;
}

Status HostArena::Claim(uint32_t slot) {
  if (slots_[slot].claimed.load(std::memory_order_acquire)) return OkStatus();
  const MutexLock lock(mutex_);
  if (slots_[slot].claimed.load(std::memory_order_relaxed)) return OkStatus();
  RETURN_IF_ERROR(reservation_.BeginAllocation(slot_stride()));
  slots_[slot].claimed.store(true, std::memory_order_release);
  return OkStatus();
}

Status HostArena::AllocateSlot(uint32_t slot) {
  const MutexLock lock(mutex_);
  if (slots_[slot].allocated.load(std::memory_order_relaxed) == layout().batch_size) return OkStatus();
  const Status allocated = AllocateMemfd(fd_.get(), slot * slot_stride(), slot_stride());
  if (!allocated.ok()) return allocated.WithContext("slot " + std::to_string(slot) + " of an arena");
  SetAllocated(slot, layout().batch_size);
  return OkStatus();
}

void HostArena::SetAllocated(uint32_t slot, uint32_t samples) {
  const uint32_t before = RaiseTo(samples, slots_[slot].allocated, std::memory_order_acq_rel);
  if (before >= samples) return;
  const auto left = [this](uint32_t first) {
    const uint32_t all = layout().batch_size;
    return first == 0 ? slot_stride() : slot_stride() / all * (all - first);
  };
  reservation_.EndAllocation(left(before) - left(samples));
  allocated_bytes_ += BytesInWholePages(slot, samples) - (before == 0 ? 0 : BytesInWholePages(slot, before));
}

uint64_t HostArena::BytesInWholePages(uint32_t slot, uint32_t samples) const {
  uint64_t bytes = 0;
  for (const TensorPlace& place : layout().tensors) {
    const uint64_t first = slot * slot_stride() + place.offset;
    const uint64_t end = first + (place.spec.packed() ? layout().batch_size : samples) * place.sample_bytes;
    const uint64_t first_page = PartsOf(first, kSmallestPageBytes);
    bytes += (std::max(end / kSmallestPageBytes, first_page) - first_page) * kSmallestPageBytes;
  }
  return bytes;
}

Status HostArena::CheckNothingGivenBack() const {
  // First, because other threads allocate meanwhile.
  const uint64_t expected = allocated_bytes_;
  if (shared_ || expected == 0) return OkStatus();  // the kernel lets nobody give back what is shared
  ASSIGN_OR_RETURN(const uint64_t bytes, AllocatedBytes(fd_.get()));
  if (bytes >= expected) return OkStatus();
  return FailedPrecondition(
      "a process has given " + ByteSize(expected - bytes) +
      " of its feed's memory back to the system (MADV_REMOVE, FALLOC_FL_PUNCH_HOLE), and to fill it again "
      "would take memory that others may have by now; leave the memory of batches to pinfeed");
}

void HostArena::Deliver(const Piece& piece, const SlotRange& /*landing*/, Done done) {
  // Every sample of the batch was prepared. Those behind it stay reserved.
  SetAllocated(piece.slot, slots_[piece.slot].prepared.load(std::memory_order_acquire));
  done(OkStatus(), {});
}

Status HostArena::PrepareForClient(uint32_t slot, uint32_t samples) {
  RETURN_IF_ERROR(Prepare({slot, 0, samples, 0}, 0, samples));
  SetAllocated(slot, samples);
  return OkStatus();
}

}  // namespace pinfeed
