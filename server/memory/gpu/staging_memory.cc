// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/staging_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/round_up.h"

namespace pinfeed {
namespace {

// Measured in decision 0014. With shorter pieces, the overhead per piece, mostly waking workers, dominates.
// Of longer ones, too few fit in the processor's cache.
constexpr uint64_t kPieceBytes = uint64_t{8} << 20;
// A tensor with smaller samples is not worth one copy per piece, unless it is larger than a piece itself.
constexpr uint64_t kSmallSampleBytes = 4096;

bool IsSmall(const TensorPlace& tensor, uint32_t batch_size) {
  return tensor.sample_bytes < kSmallSampleBytes && tensor.sample_bytes * batch_size < kPieceBytes;
}

// One link cannot use more pieces: being copied, waiting, being filled. With fewer than the minimum, the link
// is idle at times, regardless of the cache.
constexpr uint64_t kMaxPieces = 16;
constexpr uint64_t kMinPieces = 6;
// A virtual machine reports the whole cache of a processor, although it may have few of its CPUs, and other
// machines use the cache through the rest. Few servers have more per CPU.
constexpr uint64_t kMaxCacheBytesPerCpu = uint64_t{6} << 20;
// Used when the system does not report its cache size.
constexpr uint64_t kDefaultCacheBytes = uint64_t{32} << 20;

}  // namespace

uint64_t CacheShare::BytesOf(uint64_t cache_bytes, uint64_t cpus) {
  return cache_bytes == 0 ? kDefaultCacheBytes : std::min(cache_bytes, cpus * kMaxCacheBytesPerCpu) / 3 * 2;
}

uint64_t CacheShare::CacheBytes() {
  const auto value = [](int name) { return static_cast<uint64_t>(std::max(0L, ::sysconf(name))); };
  return BytesOf(value(_SC_LEVEL3_CACHE_SIZE), std::max<uint64_t>(1, value(_SC_NPROCESSORS_ONLN)));
}

Result<std::unique_ptr<StagingMemory>> StagingMemory::Create(PinnedRegion& region, CacheShare& cache,
                                                             const BatchLayout& layout, uint32_t slot_count,
                                                             uid_t user) {
  std::unique_ptr<StagingMemory> memory(new StagingMemory(cache, layout));
  memory->PlanPieces();
  const uint64_t pieces_per_slot = PartsOf(layout.batch_size, memory->piece_samples_);
  const uint64_t pieces = memory->whole_ ? slot_count : std::min(pieces_per_slot * slot_count, kMaxPieces);
  const uint64_t small_bytes = memory->whole_ ? 0 : memory->PlanSmallTensors();
  memory->piece_count_ = pieces;
  // Take all blocks at once, so that an error reports the full requirement.
  std::vector<uint64_t> sizes(pieces, memory->piece_bytes_);
  if (small_bytes > 0) sizes.insert(sizes.end(), slot_count, small_bytes);
  ASSIGN_OR_RETURN(memory->blocks_,
                   region.Take(sizes, user).WithContext("pinned_bytes: staging memory of a feed on a GPU"));
  // The memory may have belonged to another user. Of partial pieces, only filled bytes are copied.
  for (uint64_t i = 0; i < (memory->whole_ ? pieces : 1); ++i)
    std::memset(memory->blocks_[i], 0, memory->piece_bytes_);
  for (uint32_t slot = 0; small_bytes > 0 && slot < slot_count; ++slot)
    std::memset(memory->SmallTensors(slot), 0, small_bytes);
  {
    const MutexLock lock(memory->mutex_);
    for (uint64_t i = pieces; i > 0; --i) memory->free_.push_back(static_cast<uint32_t>(i - 1));
  }
  return memory;
}

void StagingMemory::PlanPieces() {
  uint64_t sample_bytes = 0;  // without small tensors
  for (const TensorPlace& tensor : layout_.tensors) {
    if (!IsSmall(tensor, layout_.batch_size)) sample_bytes += tensor.sample_bytes;
  }
  piece_samples_ = layout_.batch_size;
  whole_ = sample_bytes == 0 || layout_.slot_bytes < 2 * kPieceBytes;
  if (whole_) {
    for (const TensorPlace& tensor : layout_.tensors) places_.push_back({false, tensor.offset});
    piece_bytes_ = layout_.slot_stride;
    return;
  }
  // Equal pieces, rather than a last one with few samples.
  const uint64_t max_samples = std::max<uint64_t>(1, kPieceBytes / sample_bytes);
  const uint64_t pieces = PartsOf(layout_.batch_size, max_samples);
  piece_samples_ = static_cast<uint32_t>(PartsOf(layout_.batch_size, pieces));
  for (const TensorPlace& tensor : layout_.tensors) {
    const bool small = IsSmall(tensor, layout_.batch_size);
    places_.push_back({small, piece_bytes_});
    if (!small) piece_bytes_ = RoundUp(piece_bytes_ + piece_samples_ * tensor.sample_bytes, kTensorAlignment);
  }
}

uint64_t StagingMemory::PlanSmallTensors() {
  uint64_t bytes = 0;
  bool neighbour = false;
  for (size_t t = 0; t < places_.size(); ++t) {
    const TensorPlace& tensor = layout_.tensors[t];
    if (!places_[t].small) {
      neighbour = false;
      continue;
    }
    if (!neighbour) small_runs_.push_back({tensor.offset, bytes, 0});
    SmallRun& run = small_runs_.back();
    places_[t].offset = run.from + (tensor.offset - run.offset);
    run.bytes = tensor.offset - run.offset + layout_.batch_size * tensor.sample_bytes;
    bytes = RoundUp(run.from + run.bytes, kTensorAlignment);
    neighbour = true;
  }
  return bytes;
}

bool StagingMemory::Take(Piece* piece) {
  const MutexLock lock(mutex_);
  const uint64_t in_use = piece_count_ - free_.size();
  const uint64_t share = std::max(kMinPieces, cache_.bytes() / piece_bytes_);
  if (free_.empty() || (!whole_ && in_use >= share)) return false;
  if (in_use == 0) cache_.Enter();
  piece->memory = free_.back();
  free_.pop_back();
  return true;
}

void StagingMemory::Return(const Piece& piece) {
  const MutexLock lock(mutex_);
  free_.push_back(piece.memory);
  if (free_.size() == piece_count_) cache_.Leave();
}

std::byte* StagingMemory::FillAddress(const Piece& piece, size_t tensor) const {
  const Place& place = places_[tensor];
  if (!place.small) return blocks_[piece.memory] + place.offset;
  return SmallTensors(piece.slot) + place.offset + piece.begin * layout_.tensors[tensor].sample_bytes;
}

uint64_t StagingMemory::PackedBytes(const Piece& piece, const SlotRange& range, size_t tensor) const {
  const TensorPlace& place = layout_.tensors[tensor];
  const uint64_t memory = (piece.end - piece.begin) * place.sample_bytes;
  return std::min(memory, range.packed_rows[tensor] * place.spec.RowBytes());
}

std::vector<StagedCopy> StagingMemory::Copies(const Piece& piece, const SlotRange& range) const {
  if (whole_) return {{blocks_[piece.memory], 0, layout_.slot_bytes}};
  std::vector<StagedCopy> copies;
  for (size_t t = 0; t < places_.size(); ++t) {
    const TensorPlace& tensor = layout_.tensors[t];
    const bool packed = tensor.spec.packed();  // its rows stay where they are in the piece
    const uint64_t bytes = packed ? PackedBytes(piece, range, t) : range.samples * tensor.sample_bytes;
    const uint64_t offset = (packed ? piece.begin : range.first) * tensor.sample_bytes;
    if (!places_[t].small) {
      if (bytes > 0) copies.push_back({FillAddress(piece, t), tensor.offset + offset, bytes});
    } else if (!packed && range.first != piece.begin) {
      // Closes the gap of samples skipped in earlier pieces; source and target may overlap.
      std::memmove(SmallTensors(piece.slot) + places_[t].offset + offset, FillAddress(piece, t), bytes);
    }
  }
  for (const SmallRun& run : small_runs_) {
    if (range.last) copies.push_back({SmallTensors(piece.slot) + run.from, run.offset, run.bytes});
  }
  return copies;
}

}  // namespace pinfeed
