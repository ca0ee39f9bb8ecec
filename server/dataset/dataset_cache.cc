// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/dataset_cache.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"
#include "server/storage/storage.h"

namespace pinfeed {

namespace {

// Of a dataset that changes while it is opened. One that changes all the time is used as it is.
constexpr int kOpens = 2;
// Of one whose path leads to another folder behind it than before. Some files may be of either.
constexpr int kOpensOfOthers = 5;

// A reload of the configuration may give the name another path.
DatasetSpec WithPath(DatasetSpec spec, const DatasetSpec& resolved) {
  spec.path = resolved.path;
  return spec;
}

}  // namespace

Result<DatasetCache::Resolved> DatasetCache::Resolve(const DatasetSpec& spec) const {
  const std::shared_ptr<const Options> options = this->options();
  Key key{spec, options->allowed_roots, {}};
  if (!spec.name.empty()) {
    const auto named = options->named.find(spec.name);
    if (named == options->named.end()) {
      return NotFound(
          "dataset.name: " + QuotePath(spec.name) +
          " is not configured in the daemon; `pinfeed datasets` lists the configured names, and a path "
          "has a slash (./NAME)");
    }
    key.spec = named->second;
    // The client's options override those of the configuration.
    if (!spec.format.empty()) key.spec.format = spec.format;
    for (const auto& [name, value] : spec.options) key.spec.options[name] = value;
    // A configured path needs no allowed root: the operator chose it.
    std::error_code error;
    const std::filesystem::path path(key.spec.path);
    key.roots = {std::filesystem::is_directory(path, error) ? path.string() : path.parent_path().string()};
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Location> location,
                   ResolveLocation(key.spec.path, key.roots, PathLinks::kFollowedOnce));
  const Result<Stamp> stamp = location->StampOf("");
  if (!stamp.ok()) return ExplainMissing(stamp.status(), key.spec.path);
  key.stamp = *stamp;
  return Resolved{std::move(key), std::move(location)};
}

void DatasetCache::SetOptions(Options options) {
  auto set = std::make_shared<const Options>(std::move(options));
  Recent evicted;
  const MutexLock lock(mutex_);
  options_.swap(set);
  EvictOld(evicted);
}

void DatasetCache::Clear() {
  Recent evicted;
  const MutexLock lock(mutex_);
  evicted.swap(recent_);
}

bool DatasetCache::DropUnused() {
  Recent unused;  // destroyed without the lock
  const MutexLock lock(mutex_);
  for (auto one = recent_.begin(); one != recent_.end();) {
    const auto next = std::next(one);
    if (one->use_count() == 1) unused.splice(unused.end(), recent_, one);
    one = next;
  }
  return !unused.empty();
}

std::shared_ptr<const DatasetCache::Options> DatasetCache::options() const {
  const MutexLock lock(mutex_);
  return options_;
}

void DatasetCache::EvictOld(Recent& evicted) {
  while (recent_.size() > options_->capacity)
    evicted.splice(evicted.end(), recent_, std::prev(recent_.end()));
}

std::shared_ptr<const Dataset> DatasetCache::FindOrAdd(const Key& key,
                                                       std::shared_ptr<const Dataset> opened) {
  Recent evicted;
  const MutexLock lock(mutex_);
  entries_.remove_if([](const Entry& entry) { return entry.dataset.expired(); });
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.key == key; });
  std::shared_ptr<const Dataset> used = found != entries_.end() ? found->dataset.lock() : nullptr;
  if (used == nullptr) {
    if (opened == nullptr) return nullptr;
    used = std::move(opened);
    entries_.push_back({key, used});
  }
  recent_.remove(used);  // does not destroy it: `used` is a reference
  recent_.push_front(used);
  EvictOld(evicted);
  return used;
}

void DatasetCache::ForgetEarlier(const Key& key, const std::shared_ptr<const Dataset>& stale) {
  const auto is_of = [](const Entry& entry, const std::shared_ptr<const Dataset>& dataset) {
    return !entry.dataset.owner_before(dataset) && !dataset.owner_before(entry.dataset);
  };
  Recent forgotten;  // destroyed without the lock
  const MutexLock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool is_earlier = entry->key.spec == key.spec && entry->key.roots == key.roots &&
                            (entry->key.stamp != key.stamp || is_of(*entry, stale));
    if (!is_earlier) {
      ++entry;
      continue;
    }
    const auto found =
        std::ranges::find_if(recent_, [&](const auto& recent) { return is_of(*entry, recent); });
    if (found != recent_.end()) forgotten.splice(forgotten.end(), recent_, found);
    entry = entries_.erase(entry);
  }
}

std::shared_ptr<const Dataset> DatasetCache::WithClose(uid_t user, const DatasetSpec& spec,
                                                       std::shared_ptr<const Dataset> opened) const {
  if (close_ == nullptr) return opened;
  const Dataset* const dataset = opened.get();
  return {dataset, [close = close_, user, spec, share = std::move(opened)](const Dataset*) mutable {
            close(user, spec, std::move(share));
          }};
}

Result<std::shared_ptr<const Dataset>> DatasetCache::Open(uid_t user, const DatasetSpec& spec) {
  int64_t now = UnixNanoseconds();
  ASSIGN_OR_RETURN(Resolved resolved, Resolve(spec));
  for (int tries = 1;; ++tries) {
    const Key& key = resolved.key;
    {
      std::shared_ptr<const Dataset> open = FindOrAdd(key, nullptr);
      if (open != nullptr && open->IsCurrent()) return open;
      ForgetEarlier(key, open);
    }
    Result<std::shared_ptr<const Dataset>> made = open_(resolved.location, key.spec);
    if (made.status().code() == Code::kResourceExhausted && DropUnused()) {
      return Status(Code::kResourceExhausted,
                    made.status().message() + "; datasets without feeds are being closed: try again",
                    made.status().native_error());
    }
    const int64_t opened_at = UnixNanoseconds();
    Result<Resolved> after = Resolve(spec);
    const bool same = after.ok() && after->key == key;
    const bool is_other = after.ok() && after->key.stamp.node != key.stamp.node;
    if (!same && after.ok() && tries < (is_other ? kOpensOfOthers : kOpens)) {
      if (made.ok()) WithClose(user, WithPath(spec, key.spec), *std::move(made)).reset();
      resolved = *std::move(after);
      now = opened_at;
      continue;
    }
    ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> opened, std::move(made));
    opened = WithClose(user, WithPath(spec, key.spec), std::move(opened));
    if (is_other) {
      return FailedPrecondition("open dataset " + QuotePath(key.spec.path) +
                                ": another folder took its place each of " + std::to_string(tries) +
                                " times that it was opened, so some of its files may be of either; try again "
                                "when its path leads to the same for a while");
    }
    return same && IsSettled(key.stamp.changed_ns, now) ? FindOrAdd(key, std::move(opened)) : opened;
  }
}

}  // namespace pinfeed
