// SPDX-License-Identifier: Apache-2.0
#include "server/cache/image_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/round_up.h"
#include "common/base/status.h"
#include "common/os/memfd.h"

namespace pinfeed {
namespace {

constexpr uint64_t kPage = 4096;  // blocks are multiples of it even where pages are larger
constexpr uint64_t kChunkBytes = uint64_t{32} << 20;
// What the ledger promises at a time, so that few blocks wait for it to read the system's files. Samples do
// not look at it: it has to be less than what they leave free.
constexpr uint64_t kStepBytes = uint64_t{4} << 20;

}  // namespace

ImageMemory::ImageMemory(HostMemoryLedger& ledger, std::function<uint64_t()> headroom_bytes)
    : ledger_(ledger), headroom_bytes_(std::move(headroom_bytes)) {}

ImageMemory::~ImageMemory() {
  for (SizeClass& size_class : classes_) {
    const MutexLock lock(size_class.mutex);
    PF_CHECK(size_class.chunks.empty(), "blocks outlive their memory");
  }
}

void ImageMemory::Unmap::operator()(std::byte* address) const {
  ::munmap(address, bytes);
}

uint64_t ImageMemory::BlockBytes(uint64_t bytes) {
  return RoundUp(bytes, kPage);
}

// Four classes from each power of two to the next, so that a slot has at most a quarter more pages than its
// block. That is address space only.
size_t ImageMemory::ClassOf(uint64_t bytes) {
  size_t size_class = 0;
  const uint64_t pages = bytes / kPage;
  if (pages > 4) {
    const auto shift = static_cast<size_t>(std::bit_width(pages - 1)) - 3;
    size_class = 4 * shift + ((pages - 1) >> shift);
  } else {
    size_class = pages - 1;
  }
  PF_CHECK(size_class < kClasses && SlotBytes(size_class) >= bytes, "a block has no size class");
  return size_class;
}

uint64_t ImageMemory::SlotBytes(size_t size_class) {
  if (size_class < 4) return (size_class + 1) * kPage;
  const size_t shift = size_class / 4 - 1;
  return ((4 + size_class % 4 + 1) << shift) * kPage;
}

std::optional<ImageMemory::Block> ImageMemory::Allocate(uint64_t bytes) {
  PF_CHECK(bytes > 0 && bytes <= kMaxBytes, "no image has this size");
  bytes = BlockBytes(bytes);
  if (!TakePromised(bytes)) return std::nullopt;
  std::byte* const slot = TakeSlot(ClassOf(bytes));
  if (slot == nullptr) return std::nullopt;
  Block block(this, slot, bytes);
  const Status populated = PopulateForWriting(slot, bytes);
  // An old kernel: the pages come when they are written to.
  if (!populated.ok() && populated.code() != Code::kInvalidArgument) return std::nullopt;
  return block;
}

uint64_t ImageMemory::GiveBackPromise() {
  const MutexLock lock(mutex_);
  promise_.reset();
  return std::exchange(promised_bytes_, 0);
}

bool ImageMemory::TakePromised(uint64_t bytes) {
  const uint64_t headroom = headroom_bytes_();
  const MutexLock lock(mutex_);
  if (promised_bytes_ < bytes) {
    promise_.reset();  // what is left of it
    promised_bytes_ = 0;
    // Where the host has not that much: the bytes that an evicted image may just have given back.
    for (const uint64_t wanted : {std::max(bytes, kStepBytes), bytes}) {
      std::optional<HostMemoryLedger::Reservation> promise = ledger_.ReserveSpare(wanted, headroom);
      if (!promise) continue;
      promise_.emplace(*std::move(promise));
      promised_bytes_ = wanted;
      break;
    }
    if (!promise_) return false;
  }
  promise_->Allocate(bytes);
  promised_bytes_ -= bytes;
  return true;
}

std::byte* ImageMemory::TakeSlot(size_t size_class) {
  SizeClass& its = classes_[size_class];
  const uint64_t slot_bytes = SlotBytes(size_class);
  const MutexLock lock(its.mutex);
  if (its.open.empty()) {
    const auto slots = static_cast<uint32_t>(std::max<uint64_t>(1, kChunkBytes / slot_bytes));
    const uint64_t bytes = slots * slot_bytes;
    void* const mapped =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    // A huge page would allocate more than the block has. Fails only on kernels without huge pages.
    static_cast<void>(::madvise(mapped, bytes, MADV_NOHUGEPAGE));
    auto* const begin = static_cast<std::byte*>(mapped);
    Chunk chunk{std::unique_ptr<std::byte, Unmap>(begin, Unmap{bytes}), {}, slots};
    for (uint32_t slot = slots; slot > 0; --slot) chunk.free.push_back(slot - 1);
    its.chunks.emplace(begin, std::move(chunk));
    its.open.insert(begin);
  }
  // The lowest one, so that others become empty.
  Chunk& chunk = its.chunks.find(*its.open.begin())->second;
  std::byte* const slot = chunk.memory.get() + chunk.free.back() * slot_bytes;
  chunk.free.pop_back();
  if (chunk.free.empty()) its.open.erase(chunk.memory.get());
  return slot;
}

void ImageMemory::FreeSlot(size_t size_class, const std::byte* slot) {
  SizeClass& its = classes_[size_class];
  std::unique_ptr<std::byte, Unmap> unused;  // destroyed, and so unmapped, after the lock is given back
  const MutexLock lock(its.mutex);
  const auto found = std::prev(its.chunks.upper_bound(slot));
  Chunk& chunk = found->second;
  chunk.free.push_back(
      static_cast<uint32_t>(static_cast<uint64_t>(slot - found->first) / SlotBytes(size_class)));
  its.open.insert(found->first);
  if (chunk.free.size() < chunk.slots) return;
  unused = std::move(chunk.memory);
  its.open.erase(found->first);
  its.chunks.erase(found);
}

void ImageMemory::Free(const Block& block) {
  const size_t size_class = ClassOf(block.bytes());
  static_cast<void>(::madvise(block.data(), block.bytes(), MADV_DONTNEED));  // cannot fail on our own mapping
  FreeSlot(size_class, block.data());
}

}  // namespace pinfeed
