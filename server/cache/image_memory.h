// SPDX-License-Identifier: Apache-2.0
// Memory for cached images. In: sizes. Out: blocks of whole pages, whose memory goes back to the kernel when
// they are freed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {

// Purpose: allocates memory of very different sizes, of which none is lost to fragmentation: a block lies in
// a slot of a chunk of address space, and only the block's own pages are allocated. A chunk is unmapped when
// its last block is freed. Owns: the chunks. Outlives its blocks. Borrows: the ledger, which outlives it.
// Threads: any; allocating reads files of the system once for kStepBytes. Errors: Allocate returns nothing
// when the host lacks memory. Invariant: the blocks' bytes are all that is allocated, but for those that the
// ledger counts as promised.
class ImageMemory {
 public:
  // `headroom_bytes`: what has to stay free for others.
  ImageMemory(HostMemoryLedger& ledger, std::function<uint64_t()> headroom_bytes);
  ~ImageMemory();

  // Purpose: memory of `bytes()` bytes. Freed on destruction. Move-only. Threads: any.
  class Block {
   public:
    Block(Block&& other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)), data_(other.data_), bytes_(other.bytes_) {}
    Block& operator=(Block&& other) = delete;
    ~Block() {
      if (memory_ != nullptr) memory_->Free(*this);
    }
    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }

   private:
    friend class ImageMemory;
    Block(ImageMemory* memory, std::byte* data, uint64_t bytes)
        : memory_(memory), data_(data), bytes_(bytes) {}
    ImageMemory* memory_;
    std::byte* data_;
    uint64_t bytes_;
  };

  // The size of the block for `bytes`: whole pages.
  static uint64_t BlockBytes(uint64_t bytes);
  // A block of BlockBytes(bytes), all of it allocated. Precondition: 0 < bytes <= kMaxBytes.
  std::optional<Block> Allocate(uint64_t bytes);
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 31;
  // The ledger's promise, of which no block has been made yet. Returns its bytes.
  uint64_t GiveBackPromise() PF_EXCLUDES(mutex_);

 private:
  static constexpr size_t kClasses = 72;
  struct Unmap {
    uint64_t bytes;
    void operator()(std::byte* address) const;
  };
  struct Chunk {
    std::unique_ptr<std::byte, Unmap> memory;
    std::vector<uint32_t> free;  // slots
    uint32_t slots = 0;
  };
  // The chunks with slots of one size.
  struct SizeClass {
    Mutex mutex;
    std::map<const std::byte*, Chunk> chunks PF_GUARDED_BY(mutex);  // by their begin
    std::set<const std::byte*> open PF_GUARDED_BY(mutex);           // those with a free slot
  };

  static size_t ClassOf(uint64_t bytes);
  static uint64_t SlotBytes(size_t size_class);
  // Takes the bytes from what the ledger has promised, after it has promised more if need be.
  bool TakePromised(uint64_t bytes) PF_EXCLUDES(mutex_);
  std::byte* TakeSlot(size_t size_class);
  void FreeSlot(size_t size_class, const std::byte* slot);
  void Free(const Block& block);

  HostMemoryLedger& ledger_;
  const std::function<uint64_t()> headroom_bytes_;
  std::array<SizeClass, kClasses> classes_;
  Mutex mutex_;
  // Memory that was available when the ledger promised it, and how much of it is not taken yet.
  std::optional<HostMemoryLedger::Reservation> promise_ PF_GUARDED_BY(mutex_);
  uint64_t promised_bytes_ PF_GUARDED_BY(mutex_) = 0;
};

}  // namespace pinfeed
