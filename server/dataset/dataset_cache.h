// SPDX-License-Identifier: Apache-2.0
// Open datasets, shared by the feeds that read them and kept a while after. In: a checked DatasetSpec. Out:
// an open Dataset.
#pragma once

#include <sys/types.h>

#include <cstdint>
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

namespace pinfeed {

// Purpose: resolves names, keeps what is open. Owns: the `capacity` datasets used last; others live as long
// as their feeds. Threads: any; Open blocks on the disk, however long that takes (DatasetOpener sees to it
// that one thread at a time opens a dataset, and that nobody waits without a limit). Errors: OpenDataset's,
// and kNotFound for a name that is not configured. Invariants: 1. a dataset is opened anew when its
// directory, or an entry of it, changed since (deeper changes are seen once it left the cache); 2. no dataset
// is destroyed, which closes files and may block as an open does, but by `close`, and never under the lock.
class DatasetCache {
 public:
  struct Options {
    std::map<std::string, DatasetSpec> named;
    std::vector<std::string> allowed_roots;
    size_t capacity = 8;
  };
  using OpenFunction = std::function<Result<std::shared_ptr<const Dataset>>(
      const DatasetSpec& spec, const std::vector<std::string>& roots)>;
  // Destroys a dataset, of which it is given the only share; `user` had it opened by `spec`, where a name
  // comes with its path. Called on the thread that lets go of a dataset last, whichever that is; must outlive
  // every dataset, and throw nothing.
  using CloseFunction =
      std::function<void(uid_t user, const DatasetSpec& spec, std::shared_ptr<const Dataset> dataset)>;
  // `close` null: there, at once.
  explicit DatasetCache(Options options, CloseFunction close = nullptr, OpenFunction open = OpenDataset)
      : close_(std::move(close)),
        open_(std::move(open)),
        options_(std::make_shared<const Options>(std::move(options))) {}

  // `user`: who pays for its threads, see CloseFunction.
  Result<std::shared_ptr<const Dataset>> Open(uid_t user, const DatasetSpec& spec) PF_EXCLUDES(mutex_);

  // What is open stays open for those who read it; a name means what it says now.
  void SetOptions(Options options) PF_EXCLUDES(mutex_);
  // Lets go of all that it keeps; others that have a share of it go on.
  void Clear() PF_EXCLUDES(mutex_);
  std::shared_ptr<const Options> options() const PF_EXCLUDES(mutex_);

 private:
  using Recent = std::list<std::shared_ptr<const Dataset>>;
  struct Key {
    DatasetSpec spec;  // resolved
    std::vector<std::string> roots;
    uint64_t stamp = 0;  // of the files, see Location::Stamp
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    std::weak_ptr<const Dataset> dataset;
  };

  Result<Key> Resolve(const DatasetSpec& spec) const;
  // The same dataset, to be ended by `close_`.
  std::shared_ptr<const Dataset> WithClose(uid_t user, const DatasetSpec& spec,
                                           std::shared_ptr<const Dataset> opened) const;
  // The one that is open; if none is, `opened` from now on, unless that is null.
  std::shared_ptr<const Dataset> FindOrAdd(const Key& key, std::shared_ptr<const Dataset> opened)
      PF_EXCLUDES(mutex_);
  // Moves those for which there is no room to `evicted`, which is to end without the lock.
  void EvictOld(Recent& evicted) PF_REQUIRES(mutex_);

  const CloseFunction close_;
  const OpenFunction open_;
  mutable Mutex mutex_;
  std::shared_ptr<const Options> options_ PF_GUARDED_BY(mutex_);
  std::list<Entry> entries_ PF_GUARDED_BY(mutex_);
  Recent recent_ PF_GUARDED_BY(mutex_);  // used last first
};

}  // namespace pinfeed
