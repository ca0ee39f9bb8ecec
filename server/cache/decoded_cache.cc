// SPDX-License-Identifier: Apache-2.0
#include "server/cache/decoded_cache.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "common/base/philox.h"

namespace pinfeed {
namespace {

// Entries that are compared to find one to evict. With 16, it is among the last 6% in most cases.
constexpr size_t kCandidates = 16;
// Entries that are looked at for those of one user.
constexpr size_t kLookedAt = 256;
// Entries that one image may evict: it may be larger than they are.
constexpr int kMaxEvictions = 16;
// The same where the host lacks memory. There the cache shrinks while images come.
constexpr int kMaxTries = 3;
// An entry that no feed will use is worth as much as a new one for this long. So the next job on a dataset
// finds what the last one left, and single epochs do not replace each other's images.
constexpr double kUnusedSeconds = 600;
// A single image takes at most this part of the cache.
constexpr uint64_t kMaxPart = 8;

}  // namespace

struct DecodedCache::Candidate {
  Key key;
  Use use;
  Clock::time_point used;
  const CachedImage* image;  // for comparison only

  // Time until its next use.
  double Seconds(Clock::time_point now) const {
    const double seconds = use.dataset->SecondsUntil(use.sample);
    if (seconds < FeedUses::kNever) return seconds;
    return FeedUses::kNever + std::chrono::duration<double>(now - used).count();
  }
};

size_t DecodedCache::KeyHash::operator()(const Key& key) const {
  size_t hash = std::hash<std::string>()(*key.head);
  for (const uint64_t part : {key.mount, key.device, key.inode, key.offset})
    hash = (hash ^ std::hash<uint64_t>()(part)) * 0x9E3779B97F4A7C15 + (hash >> 29);
  return hash;
}

DecodedCache::DecodedCache(const Options& options)
    : ledger_(*options.ledger),
      freed_besides_bytes_(options.freed_besides_bytes),
      settle_time_(options.settle_time),
      budget_(options.capacity_bytes, options.user_bytes,
              {"the decoded cache", "cache_bytes", "user_cache_bytes"}),
      memory_(*options.ledger, options.headroom_bytes) {
  ledger_.SetFreeSpare([this](uint64_t bytes) { return Free(bytes); });
}

DecodedCache::~DecodedCache() {
  ledger_.SetFreeSpare(nullptr);
}

std::shared_ptr<DatasetUses> DecodedCache::UsesOf(const std::string& key) {
  const MutexLock lock(uses_mutex_);
  std::erase_if(uses_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<DatasetUses>& known = uses_[key];
  std::shared_ptr<DatasetUses> uses = known.lock();
  if (uses == nullptr) {
    uses = std::make_shared<DatasetUses>();
    known = uses;
  }
  return uses;
}

DecodedCache::Image DecodedCache::Find(const FileVersion& file, const Head& head, const Use& use) {
  const Key key(file, head);
  Shard& shard = ShardOf(key);
  Image outdated;  // freed after the lock is given back
  const MutexLock lock(shard.mutex);
  const auto found = shard.entries.find(key);
  if (found == shard.entries.end() || found->second.file != file) {
    if (found != shard.entries.end()) outdated = Remove(shard, found);
    ++shard.misses;
    return nullptr;
  }
  ++shard.hits;
  Entry& entry = found->second;
  entry.used = Clock::now();
  if (entry.use.dataset != use.dataset) entry.use = {use.dataset, use.sample, entry.use.user};
  entry.use.sample = use.sample;
  return entry.image;
}

bool DecodedCache::Has(const FileVersion& file, const Head& head) const {
  const Key key(file, head);
  const Shard& shard = ShardOf(key);
  const MutexLock lock(shard.mutex);
  const auto found = shard.entries.find(key);
  return found != shard.entries.end() && found->second.file == file;
}

std::shared_ptr<CachedImage> DecodedCache::MakeRoom(const FileVersion& file, ImageSize size, const Use& use,
                                                    Evict evict) {
  const uint64_t bytes = ImageMemory::BlockBytes(
      3 * static_cast<uint64_t>(size.width) * static_cast<uint64_t>(size.height) + kRowSlack);
  const uint64_t most = std::min(budget_.capacity_bytes(), budget_.max_per_user());
  if (bytes > std::min(most / kMaxPart, ImageMemory::kMaxBytes)) return nullptr;
  if (file.changed_ns > file.seen_ns - settle_time_.count()) return nullptr;
  double seconds = use.dataset->SecondsUntil(use.sample);
  if (seconds >= FeedUses::kNever) seconds += kUnusedSeconds;
  if (evict == Evict::kUnused) seconds = std::max(seconds, std::nextafter(FeedUses::kNever, 0.0));
  int tries = 0;
  for (int evicted = 0; evicted <= kMaxEvictions && tries < kMaxTries; ++evicted) {
    if (Result<BudgetLease> lease = budget_.Reserve(bytes, use.user); lease.ok()) {
      if (std::optional<ImageMemory::Block> block = memory_.Allocate(bytes))
        return std::make_shared<CachedImage>(*std::move(lease), *std::move(block), size);
      ++tries;
    }
    const std::map<uid_t, uint64_t> users = budget_.used_by_user();
    const auto has = users.find(use.user);
    const bool over = has != users.end() && has->second + bytes > budget_.max_per_user();
    if (!EvictLater(seconds, over ? std::optional(use.user) : std::nullopt)) return nullptr;
  }
  return nullptr;
}

void DecodedCache::Add(const FileVersion& file, const Head& head, const Use& use, Image image) {
  const Key key(file, head);
  Shard& shard = ShardOf(key);
  const MutexLock lock(shard.mutex);
  if (shard.order.size() == shard.order.capacity())
    shard.order.reserve(2 * shard.order.size() + 1);  // may throw
  const auto [added, is_new] = shard.entries.try_emplace(key);
  Entry& entry = added->second;
  if (is_new) {
    entry.index = shard.order.size();
    shard.order.push_back(&*added);
  }
  // Another worker may have added the same image meanwhile: the newer one stays, since its file is as new.
  std::swap(entry.image, image);
  entry.file = file;
  entry.use = use;
  entry.used = Clock::now();
}

DecodedCache::Image DecodedCache::Remove(Shard& shard, Entries::iterator entry) {
  const size_t index = entry->second.index;
  shard.order[index] = shard.order.back();
  shard.order[index]->second.index = index;
  shard.order.pop_back();
  Image image = std::move(entry->second.image);
  shard.entries.erase(entry);
  return image;
}

// Of parts that follow each other, from a random one on, until there are enough. The hash spreads the
// entries, so any part is as good a sample as another.
std::vector<DecodedCache::Candidate> DecodedCache::SomeEntries(std::optional<uid_t> user) {
  const std::array<uint32_t, 4> random = Philox4x32(
      {static_cast<uint32_t>(draws_.fetch_add(1, std::memory_order_relaxed)), 0, 0, 0}, {0x6361'6368, 0});
  uint64_t state = uint64_t{random[1]} << 32 | random[2];
  std::vector<Candidate> some;
  size_t looked_at = 0;
  for (size_t i = 0; i < kShards && some.size() < kCandidates && looked_at < kLookedAt; ++i) {
    const Shard& shard = shards_[(random[0] + i) % kShards];
    const MutexLock lock(shard.mutex);
    const size_t count = std::min(shard.order.size(), kLookedAt - looked_at);
    for (size_t k = 0; k < count && some.size() < kCandidates; ++k, ++looked_at) {
      state = state * 6364136223846793005 + 1442695040888963407;  // D. Knuth's MMIX
      const auto& [key, entry] = *shard.order[(state >> 33) % shard.order.size()];
      if (!user || entry.use.user == *user) some.push_back({key, entry.use, entry.used, entry.image.get()});
    }
  }
  return some;
}

bool DecodedCache::EvictLater(double seconds, std::optional<uid_t> user) {
  const Clock::time_point now = Clock::now();
  const Candidate* last = nullptr;
  const std::vector<Candidate> some = SomeEntries(user);
  for (const Candidate& candidate : some) {
    const double its = candidate.Seconds(now);
    if (its <= seconds) continue;
    seconds = its;
    last = &candidate;
  }
  if (last == nullptr) return false;
  Shard& shard = ShardOf(last->key);
  Image evicted;  // freed after the lock is given back
  const MutexLock lock(shard.mutex);
  const auto found = shard.entries.find(last->key);
  // Another worker may have evicted or replaced it, which made room too.
  if (found == shard.entries.end() || found->second.image.get() != last->image) return true;
  evicted = Remove(shard, found);
  evictions_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

DecodedCache::Dropped DecodedCache::Drop() {
  Dropped dropped;
  memory_.GiveBackPromise();
  for (Shard& shard : shards_) {
    Entries entries;  // destroyed after the lock is given back
    const MutexLock lock(shard.mutex);
    entries.swap(shard.entries);
    shard.order.clear();
    dropped.entries += entries.size();
    for (const auto& [key, entry] : entries) dropped.bytes += entry.image->bytes();
  }
  return dropped;
}

bool DecodedCache::Free(uint64_t bytes) {
  if (memory_.GiveBackPromise() != 0) return true;  // that may help, as the caller will see
  const uint64_t used = budget_.used_bytes();
  if (used < bytes) return false;
  const uint64_t left = used - std::min(used, bytes + freed_besides_bytes_);
  while (budget_.used_bytes() > left && EvictLater(-1, std::nullopt)) {
  }
  return budget_.used_bytes() < used;
}

DecodedCache::Counts DecodedCache::counts() const {
  Counts counts{.evictions = evictions_.load(std::memory_order_relaxed),
                .made_ahead = made_ahead_.load(std::memory_order_relaxed)};
  for (const Shard& shard : shards_) {
    const MutexLock lock(shard.mutex);
    counts.hits += shard.hits;
    counts.misses += shard.misses;
    counts.entries += shard.entries.size();
  }
  return counts;
}

}  // namespace pinfeed
