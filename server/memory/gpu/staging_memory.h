// SPDX-License-Identifier: Apache-2.0
// Stage 3 of the way of a batch to a GPU: the pinned memory that workers fill, a piece of a batch at a time.
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

// Purpose: shares the processor's cache among the arenas that are being filled. Threads: any; no lock. One
// arena too many or too few for a moment does no harm.
class CacheShare {
 public:
  explicit CacheShare(uint64_t bytes) : bytes_(bytes) {}
  // Of the machine's last-level cache.
  static uint64_t CacheBytes();

  void Enter() { arenas_.fetch_add(1, std::memory_order_relaxed); }
  void Leave() { arenas_.fetch_sub(1, std::memory_order_relaxed); }
  // Of each of the arenas.
  uint64_t bytes() const {
    const uint32_t arenas = arenas_.load(std::memory_order_relaxed);
    return bytes_ / (arenas == 0 ? 1 : arenas);
  }

 private:
  const uint64_t bytes_;
  std::atomic<uint32_t> arenas_{0};
};

// A run of bytes to be copied from pinned memory to its place in a slot.
struct StagedCopy {
  const std::byte* from = nullptr;
  uint64_t offset = 0;  // in the slot
  uint64_t bytes = 0;
};

// Purpose: pinned memory for a few pieces at once, whatever the number of slots, and no more of them in use
// than this arena's share of the processor's cache, which then holds what is written until it is copied: the
// bytes need not cross the host's memory for that. Within
// a piece each tensor lies by itself, so that it is one copy. Tensors of a few bytes a sample (labels, ids,
// marks) would be copies of next to nothing: they are kept for the whole batch, a place for each slot, and
// copied with its last piece. A batch hardly larger than a piece is one piece, laid out as its slot, and one
// copy. Owns: the pinned blocks. Borrows: the cache's share, which outlives it. Threads: any; Take and Return
// have a lock that is held for a moment. Invariants: 1. a piece's memory is nobody else's from Take to
// Return; 2. Copies lie within the slot; 3. no byte that is copied is from before: what is copied unfilled,
// behind a short batch or between tensors, is zero, or of this feed.
class StagingMemory {
 public:
  // `user`: that it is charged to. kResourceExhausted with the numbers, of all that it takes.
  static Result<std::unique_ptr<StagingMemory>> Create(PinnedRegion& region, CacheShare& cache,
                                                       const BatchLayout& layout, uint32_t slot_count,
                                                       uid_t user);
  // As long as a piece. Only before the first Take.
  std::span<const std::byte> Zeros() const { return {blocks_[0], piece_bytes_}; }

  uint32_t piece_samples() const { return piece_samples_; }
  // See Arena.
  bool Take(Piece* piece) PF_EXCLUDES(mutex_);
  void Return(const Piece& piece) PF_EXCLUDES(mutex_);
  std::byte* FillAddress(const Piece& piece, size_t tensor) const;
  // What is to be copied of a filled piece; nothing when all of its samples were skipped. Called once a
  // piece, in order: brings the small tensors to where the piece lands.
  std::vector<StagedCopy> Copies(const Piece& piece, const SlotRange& landing) const;

 private:
  // Of a tensor: where its samples lie in a piece, or in the small tensors of a slot.
  struct Place {
    bool small = false;
    uint64_t offset = 0;
  };
  // Small tensors that are neighbours in the slot, and here.
  struct SmallRun {
    uint64_t offset = 0;  // in the slot
    uint64_t from = 0;    // in the small tensors of a slot
    uint64_t bytes = 0;
  };
  StagingMemory(CacheShare& cache, const BatchLayout& layout) : cache_(cache), layout_(layout) {}
  // How a batch is cut, and a piece laid out.
  void LayOut();
  // Returns how many bytes of them there are in a batch.
  uint64_t LayOutSmall();

  CacheShare& cache_;
  const BatchLayout layout_;
  bool whole_ = false;  // a batch is one piece, laid out as its slot
  uint32_t piece_samples_ = 0;
  uint64_t piece_bytes_ = 0;
  std::vector<Place> places_;  // by tensor
  std::vector<SmallRun> small_runs_;
  std::byte* SmallTensors(uint32_t slot) const { return blocks_[piece_count_ + slot]; }
  size_t piece_count_ = 0;
  PinnedBlocks blocks_;  // the pieces, then the small tensors of each slot
  Mutex mutex_;
  std::vector<uint32_t> free_ PF_GUARDED_BY(mutex_);  // pieces; the one returned last is taken first
};

}  // namespace pinfeed
