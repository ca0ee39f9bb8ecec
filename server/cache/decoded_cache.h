// SPDX-License-Identifier: Apache-2.0
// Decoded images in host memory, for every feed of the daemon. In: the pixels that the fixed first transforms
// of a feed make of an image file. Out: the same pixels, for later samples.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/sync.h"
#include "server/cache/dataset_uses.h"
#include "server/cache/image_memory.h"
#include "server/image/image.h"
#include "server/memory/host_memory_ledger.h"
#include "server/memory/memory_budget.h"
#include "server/storage/storage.h"

namespace pinfeed {

// Purpose: one image's pixels and what is charged for them. Immutable once it is in the cache. Threads: any.
class CachedImage {
 public:
  CachedImage(BudgetLease lease, ImageMemory::Block block, ImageSize size)
      : lease_(std::move(lease)), block_(std::move(block)), size_(size) {}

  uint64_t bytes() const { return block_.bytes(); }
  ImageSize size() const { return size_; }
  // The size of the image that it was made of. Set before it is in the cache.
  ImageSize source() const { return source_; }
  void set_source(ImageSize source) { source_ = source; }
  ImageView view() const {
    return {pixels(), size_.width, size_.height, 3 * static_cast<size_t>(size_.width)};
  }
  // To fill it: packed rows.
  uint8_t* pixels() const { return reinterpret_cast<uint8_t*>(block_.data()); }

 private:
  const BudgetLease lease_;  // returned after the memory is
  const ImageMemory::Block block_;
  const ImageSize size_;
  ImageSize source_;
};

// Purpose: keeps the images that will be used soonest. When it is full, the one of a few random entries that
// is used last gives way, unless the new image would be used even later. Owns: budget, memory, entries; an
// image that a worker uses lives on until the worker is done. Borrows: the ledger; frees
// images when that lacks memory. Outlives the feeds. Threads: any. A look-up locks one of many parts for a
// short time. Errors: none; what does not fit is not kept. Invariants: 1. an image is only found for the
// version of the file that it was made of, and for the transforms that made it; 2. memory in use <= capacity,
// and of one user <= their share.
class DecodedCache {
 public:
  struct Options {
    uint64_t capacity_bytes = 0;
    uint64_t user_bytes = UINT64_MAX;
    HostMemoryLedger* ledger = &HostMemoryLedger::ForThisProcess();
    std::function<uint64_t()> headroom_bytes = [] { return uint64_t{0}; };  // to leave to others
    // What Free evicts besides what is lacking, as others take memory meanwhile without asking for it.
    uint64_t freed_besides_bytes = uint64_t{16} << 20;
    // A file that was changed so shortly before it was read is not kept: another write might leave its times
    // as they are.
    std::chrono::nanoseconds settle_time = kSettleTime;
  };
  explicit DecodedCache(const Options& options);
  ~DecodedCache();

  // Who looks up or adds an image: a sample of a dataset, for a user.
  struct Use {
    std::shared_ptr<const DatasetUses> dataset;
    uint64_t sample = 0;
    uid_t user = 0;
  };
  using Head = std::shared_ptr<const std::string>;  // names the transforms that made the pixels
  using Image = std::shared_ptr<const CachedImage>;

  // The feeds of the dataset that `key` names. Those of one key get the same object, as long as there are
  // feeds or entries.
  std::shared_ptr<DatasetUses> UsesOf(const std::string& key) PF_EXCLUDES(uses_mutex_);

  // Null: it has none. An image of another version of the file is dropped.
  Image Find(const FileVersion& file, const Head& head, const Use& use);
  // Whether it has one. Counts as no use.
  bool Has(const FileVersion& file, const Head& head) const;
  // Memory for an image, whose pixels the caller writes before it adds it. May evict others: those that are
  // used later, or only those that no feed will use. Null: it is not worth keeping, or the host or the user
  // has no memory for it, or the file has just been changed.
  enum class Evict { kUnused, kLater };
  std::shared_ptr<CachedImage> MakeRoom(const FileVersion& file, ImageSize size, const Use& use,
                                        Evict evict = Evict::kLater);
  void Add(const FileVersion& file, const Head& head, const Use& use, Image image);

  // An image was added before the sample that it is of came up.
  void CountMadeAhead() { made_ahead_.fetch_add(1, std::memory_order_relaxed); }

  struct Dropped {
    uint64_t entries = 0;
    uint64_t bytes = 0;
  };
  // Gives all memory back, but for images in use.
  Dropped Drop();
  // See HostMemoryLedger::FreeSpare. Those that are used soonest stay.
  bool Free(uint64_t bytes);

  struct Counts {
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t evictions = 0;
    uint64_t made_ahead = 0;
    uint64_t entries = 0;
  };
  Counts counts() const;
  const MemoryBudget& budget() const { return budget_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Key {
    Key(const FileVersion& file, Head of)
        : mount(file.mount),
          device(file.device),
          inode(file.inode),
          offset(file.offset),
          head(std::move(of)) {}
    uint64_t mount;
    uint64_t device;
    uint64_t inode;
    uint64_t offset;
    Head head;
    bool operator==(const Key& other) const {
      return mount == other.mount && device == other.device && inode == other.inode &&
             offset == other.offset && (head == other.head || *head == *other.head);
    }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    FileVersion file;
    Image image;
    Use use;  // the last one
    Clock::time_point used;
    size_t index = 0;  // in Shard::order
  };
  using Entries = std::unordered_map<Key, Entry, KeyHash>;
  // One of the parts, each with its own lock.
  struct alignas(64) Shard {
    mutable Mutex mutex;
    Entries entries PF_GUARDED_BY(mutex);
    std::vector<Entries::value_type*> order PF_GUARDED_BY(mutex);  // all of them, to choose at random
    uint64_t hits PF_GUARDED_BY(mutex) = 0;
    uint64_t misses PF_GUARDED_BY(mutex) = 0;
  };
  static constexpr size_t kShards = 64;
  struct Candidate;

  Shard& ShardOf(const Key& key) { return shards_[KeyHash()(key) / 7 % kShards]; }
  const Shard& ShardOf(const Key& key) const { return shards_[KeyHash()(key) / 7 % kShards]; }
  static Image Remove(Shard& shard, Entries::iterator entry) PF_REQUIRES(shard.mutex);
  // Evicts an entry that is used later than `seconds`; of `user` only, if given. False: found none.
  bool EvictLater(double seconds, std::optional<uid_t> user);
  std::vector<Candidate> SomeEntries(std::optional<uid_t> user);

  HostMemoryLedger& ledger_;
  const uint64_t freed_besides_bytes_;
  const std::chrono::nanoseconds settle_time_;
  MemoryBudget budget_;
  ImageMemory memory_;
  std::array<Shard, kShards> shards_;
  std::atomic<uint64_t> evictions_{0};
  std::atomic<uint64_t> made_ahead_{0};
  std::atomic<uint64_t> draws_{0};  // random numbers drawn so far
  Mutex uses_mutex_;
  std::map<std::string, std::weak_ptr<DatasetUses>> uses_ PF_GUARDED_BY(uses_mutex_);
};

}  // namespace pinfeed
