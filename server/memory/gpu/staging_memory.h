// SPDX-License-Identifier: Apache-2.0
// Stage 6b of a batch: the pinned memory that workers fill, one piece at a time.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "server/memory/arena.h"
#include "server/memory/gpu/pinned_region.h"

namespace pinfeed {

// Purpose: divides the processor's cache among the arenas that are being filled. Owns: only the count. One a
// daemon, which keeps it longer than every arena. Threads: any; lock-free. A briefly inexact number of arenas
// is harmless. Errors: none.
class CacheShare {
 public:
  explicit CacheShare(uint64_t bytes) : bytes_(bytes) {}
  // Two thirds of the last-level cache of `cache_bytes` that this host's `cpus` share, perhaps with other
  // machines: what workers read goes through it as well. 0 bytes: the system does not say.
  static uint64_t BytesOf(uint64_t cache_bytes, uint64_t cpus);
  // Those of this host's processor.
  static uint64_t CacheBytes();

  void Enter() { arenas_.fetch_add(1, std::memory_order_relaxed); }
  void Leave() { arenas_.fetch_sub(1, std::memory_order_relaxed); }
  // The share of each arena.
  uint64_t bytes() const {
    const uint32_t arenas = arenas_.load(std::memory_order_relaxed);
    return bytes_ / (arenas == 0 ? 1 : arenas);
  }

 private:
  const uint64_t bytes_;
  std::atomic<uint32_t> arenas_{0};
};

// Contiguous bytes to copy from pinned memory to their place in a slot.
struct StagedCopy {
  const std::byte* from = nullptr;
  uint64_t offset = 0;  // in the slot
  uint64_t bytes = 0;
};

// Purpose: pinned memory for a few pieces at a time, independent of the number of slots. An arena uses its
// share of the processor's cache, and at least kMinPieces pieces, so that pieces stay in the cache until they
// are copied and the copy does not read main memory.
// Within a piece, each tensor is contiguous and needs one copy. Small tensors (labels, ids, masks) are kept
// for the whole batch, per slot, and are copied with its last piece. A batch not much larger than a piece is
// a single piece with the layout of its slot, and a single copy.
// Owns: the pinned blocks. Borrows: the cache share, which outlives it.
// Threads: any; Take and Return hold a lock briefly.
// Errors: only Create fails. Take returns false while every piece is in use.
// Invariants:
// 1. A piece's memory has one user from Take to Return.
// 2. Copies lie within the slot.
// 3. No copied byte is older than this memory. Bytes that are copied without being filled, after a short
//    batch or between tensors, are zero or from this feed.
class StagingMemory {
 public:
  // The memory is charged to `user`. kResourceExhausted, with the total numbers, when it does not fit.
  static Result<std::unique_ptr<StagingMemory>> Create(PinnedRegion& region, CacheShare& cache,
                                                       const BatchLayout& layout, uint32_t slot_count,
                                                       uid_t user);
  // Zeros as long as a piece. Only before the first Take.
  std::span<const std::byte> Zeros() const { return {blocks_[0], piece_bytes_}; }

  uint32_t piece_samples() const { return piece_samples_; }
  // See Arena.
  bool Take(Piece* piece) PF_EXCLUDES(mutex_);
  void Return(const Piece& piece) PF_EXCLUDES(mutex_);
  std::byte* FillAddress(const Piece& piece, size_t tensor) const;
  // Returns the copies for a filled piece; empty when all of its samples were skipped. Call once per piece,
  // in order: it also moves the small tensors to the piece's final position.
  std::vector<StagedCopy> Copies(const Piece& piece, const SlotRange& range) const;

 private:
  // Where a tensor's samples lie, in a piece or in the small tensors of a slot.
  struct Place {
    bool small = false;
    uint64_t offset = 0;
  };
  // Small tensors that are adjacent both in the slot and in staging memory.
  struct SmallRun {
    uint64_t offset = 0;  // in the slot
    uint64_t from = 0;    // in the small tensors of a slot
    uint64_t bytes = 0;
  };
  StagingMemory(CacheShare& cache, const BatchLayout& layout) : cache_(cache), layout_(layout) {}
  // Determines how a batch is split and how a piece is laid out.
  void PlanPieces();
  // The bytes that the piece has of a packed tensor.
  uint64_t PackedBytes(const Piece& piece, const SlotRange& range, size_t tensor) const;
  // Lays out the small tensors. Returns their bytes per batch.
  uint64_t PlanSmallTensors();

  CacheShare& cache_;
  const BatchLayout layout_;
  bool whole_ = false;  // a batch is one piece with the layout of its slot
  uint32_t piece_samples_ = 0;
  uint64_t piece_bytes_ = 0;
  std::vector<Place> places_;  // by tensor
  std::vector<SmallRun> small_runs_;
  std::byte* SmallTensors(uint32_t slot) const { return blocks_[piece_count_ + slot]; }
  size_t piece_count_ = 0;
  PinnedBlocks blocks_;  // the pieces, then the small tensors of each slot
  Mutex mutex_;
  std::vector<uint32_t> free_ PF_GUARDED_BY(mutex_);  // pieces; last returned, first taken
};

}  // namespace pinfeed
