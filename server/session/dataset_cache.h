// SPDX-License-Identifier: Apache-2.0
// Open datasets, shared by the feeds that read them and kept a while after. In: a checked DatasetSpec. Out:
// an open Dataset.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/feed_spec.h"
#include "common/result.h"
#include "common/sync.h"
#include "server/source/dataset.h"

namespace pinfeed {

// Purpose: resolves names, opens each dataset once. Owns: the `capacity` datasets used last; others live as
// long as their feeds. Threads: Open from any thread; it blocks on the disk, and on another thread that opens
// the same dataset. Errors: OpenDataset's, and kNotFound for a name that is not configured. Invariant: a
// dataset is opened anew when its directory, or an entry of it, changed since (deeper changes are seen once
// it left the cache).
class DatasetCache {
 public:
  struct Options {
    std::map<std::string, DatasetSpec> named;
    std::vector<std::string> allowed_roots;
    size_t capacity = 8;
  };
  explicit DatasetCache(Options options) : options_(std::make_shared<const Options>(std::move(options))) {}

  Result<std::shared_ptr<const Dataset>> Open(const DatasetSpec& spec) PF_EXCLUDES(mutex_);

  // What is open stays open for those who read it; a name means what it says now.
  void SetOptions(Options options) PF_EXCLUDES(mutex_);
  std::shared_ptr<const Options> options() const PF_EXCLUDES(mutex_);

 private:
  struct Key {
    DatasetSpec spec;  // resolved
    std::vector<std::string> roots;
    uint64_t stamp = 0;  // of the files, see StampOf
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    std::weak_ptr<const Dataset> dataset;
    bool opening = false;
  };

  Result<Key> Resolve(const DatasetSpec& spec) const;
  Entry* Find(const Key& key) PF_REQUIRES(mutex_);
  void Keep(std::shared_ptr<const Dataset> dataset) PF_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::shared_ptr<const Options> options_ PF_GUARDED_BY(mutex_);
  CondVar opened_;
  std::list<Entry> entries_ PF_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<const Dataset>> kept_ PF_GUARDED_BY(mutex_);  // used last first
};

}  // namespace pinfeed
