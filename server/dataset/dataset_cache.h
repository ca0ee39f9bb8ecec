// SPDX-License-Identifier: Apache-2.0
// A cache of open datasets, which feeds share. In: a checked DatasetSpec. Out: an open Dataset.
#pragma once

#include <sys/types.h>

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/spec/feed_spec.h"
#include "server/dataset/dataset.h"
#include "server/dataset/open_dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

// Purpose: resolves the names of datasets and shares the open ones.
// Owns: the `capacity` most recently used datasets. Others live as long as their feeds.
// Threads: any. Open blocks on storage without a time limit. DatasetOpener bounds the threads and the
// waiting. Errors: those of OpenDataset, kNotFound for a name that is not configured, and kFailedPrecondition
// for a path that leads to another folder each time it is opened. Invariants: 1. a
// dataset is opened again if its directory or an entry of it has changed, or had changed so shortly before it
// was opened that another change may have the same time, or if it is not current; 2. only
// `close` destroys datasets, and never under the lock, since destroying one closes files and may block like
// an open.
class DatasetCache {
 public:
  struct Options {
    std::map<std::string, DatasetSpec> named;
    std::vector<std::string> allowed_roots;
    size_t capacity = 8;
  };
  using OpenFunction = std::function<Result<std::shared_ptr<const Dataset>>(
      const std::shared_ptr<const Location>& location, const DatasetSpec& spec)>;
  // Destroys a dataset that nobody else uses. `user` opened it by `spec`; for a named dataset, `spec` also
  // has the path that the name stood for. Called on the thread that drops the last reference. Must outlive
  // every dataset, and must not throw.
  using CloseFunction =
      std::function<void(uid_t user, const DatasetSpec& spec, std::shared_ptr<const Dataset> dataset)>;
  // Without `close`, the thread that drops the last reference destroys the dataset immediately.
  explicit DatasetCache(
      Options options, CloseFunction close = nullptr,
      OpenFunction open = [](const auto& location,
                             const DatasetSpec& spec) { return OpenDataset(location, spec); })
      : close_(std::move(close)),
        open_(std::move(open)),
        options_(std::make_shared<const Options>(std::move(options))) {}

  // `user` is the one that CloseFunction gets.
  Result<std::shared_ptr<const Dataset>> Open(uid_t user, const DatasetSpec& spec) PF_EXCLUDES(mutex_);

  // Open datasets stay open for their readers. From now on, names resolve by the new options.
  void SetOptions(Options options) PF_EXCLUDES(mutex_);
  // Drops the cache's own references. Readers of the datasets are unaffected.
  void Clear() PF_EXCLUDES(mutex_);
  std::shared_ptr<const Options> options() const PF_EXCLUDES(mutex_);

 private:
  using Recent = std::list<std::shared_ptr<const Dataset>>;
  struct Key {
    DatasetSpec spec;  // resolved
    std::vector<std::string> roots;
    Stamp stamp;
    bool operator==(const Key&) const = default;
  };
  struct Resolved {
    Key key;
    // The dataset is opened by it, so that it is what has the stamp, wherever links lead meanwhile.
    std::shared_ptr<const Location> location;
  };
  struct Entry {
    Key key;
    std::weak_ptr<const Dataset> dataset;
  };

  Result<Resolved> Resolve(const DatasetSpec& spec) const;
  // Returns the dataset with a deleter that calls `close_`.
  std::shared_ptr<const Dataset> WithClose(uid_t user, const DatasetSpec& spec,
                                           std::shared_ptr<const Dataset> opened) const;
  // Returns the open dataset of that key. If there is none, adds and returns `opened`, which may be null.
  std::shared_ptr<const Dataset> FindOrAdd(const Key& key, std::shared_ptr<const Dataset> opened)
      PF_EXCLUDES(mutex_);
  // Drops what was opened by the same spec before its files changed, and `stale`, which may be null.
  void ForgetEarlier(const Key& key, const std::shared_ptr<const Dataset>& stale) PF_EXCLUDES(mutex_);
  // Drops the datasets that nobody reads. Returns whether there were some.
  bool DropUnused() PF_EXCLUDES(mutex_);
  // Moves the datasets beyond the capacity to `evicted`, which the caller destroys without the lock.
  void EvictOld(Recent& evicted) PF_REQUIRES(mutex_);

  const CloseFunction close_;
  const OpenFunction open_;
  mutable Mutex mutex_;
  std::shared_ptr<const Options> options_ PF_GUARDED_BY(mutex_);
  std::list<Entry> entries_ PF_GUARDED_BY(mutex_);
  Recent recent_ PF_GUARDED_BY(mutex_);  // most recently used first
};

}  // namespace pinfeed
