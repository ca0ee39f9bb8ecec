// SPDX-License-Identifier: Apache-2.0
// A storage in memory that fails as remote storages do: reads that come short, errors, files that vanish,
// reads that do not return until the test lets them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "server/storage/storage.h"

namespace pinfeed {

// Purpose: files by their paths ("set/a.npy"); directories are the prefixes. Must outlive its locations and
// files. Threads: any.
class MemoryStorage {
 public:
  // `remote`: what its locations say of themselves.
  explicit MemoryStorage(bool remote = false) : remote_(remote) {}

  // Makes or replaces the file, without a fault. Its lasting version is another one, of the Unix time 0 and
  // so many nanoseconds.
  void Write(const std::string& path, std::string bytes) PF_EXCLUDES(mutex_);
  // Reads of the file and opening it are kNotFound from now on, as after an unlink on some storages.
  void Remove(const std::string& path) PF_EXCLUDES(mutex_);
  // Reads give only the file's first `bytes` bytes, though it was larger when it was opened.
  void Cut(const std::string& path, size_t bytes) PF_EXCLUDES(mutex_);
  // The second read from the file's start and those after it give `bytes`, which are of the file's size.
  void RewriteBeforeSecondPass(const std::string& path, const std::string& bytes) PF_EXCLUDES(mutex_);
  // Reads are EIO.
  void Break(const std::string& path) PF_EXCLUDES(mutex_);
  // Reads find no memory (std::bad_alloc).
  void Exhaust(const std::string& path) PF_EXCLUDES(mutex_);
  // Reads of the file do not return before Resume.
  void Hang(const std::string& path) PF_EXCLUDES(mutex_);
  void Resume() PF_EXCLUDES(mutex_);
  // Returns once so many reads hang.
  void AwaitHung(size_t reads) const PF_EXCLUDES(mutex_);

  // What was asked for ahead of the file: offsets and bytes, in order. The storage reads nothing ahead.
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;
  Ranges AskedAhead(const std::string& path) const PF_EXCLUDES(mutex_);

  // Files that are written from now on were changed at this Unix time and one more nanosecond each.
  void SetClock(int64_t now_ns) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    writes_ = now_ns;
  }

  // The place `path`, whether or not anything is there. Its name is "memory:/" and the path.
  std::shared_ptr<const Location> At(const std::string& path);

 private:
  friend class MemoryFile;
  friend class MemoryLocation;
  struct File {
    std::string bytes;
    size_t readable = 0;
    std::string second = {};  // empty: not to be rewritten
    bool first_pass_began = false;
    bool broken = false;
    bool exhausted = false;
    bool hung = false;
    int64_t changed_ns = 0;
    mutable Ranges prefetched = {};
  };

  Status Read(const std::string& path, uint64_t offset, std::span<std::byte> out, size_t* got) const
      PF_EXCLUDES(mutex_);

  const bool remote_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable std::map<std::string, File> files_ PF_GUARDED_BY(mutex_);
  mutable size_t hanging_ PF_GUARDED_BY(mutex_) = 0;
  int64_t writes_ PF_GUARDED_BY(mutex_) = 0;
};

}  // namespace pinfeed
