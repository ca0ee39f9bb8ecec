// SPDX-License-Identifier: Apache-2.0
// Finds the files in the directories of a dataset, by several threads. In: directories to start at. Out: the
// names of the files that the format takes, in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "server/dataset/index_store.h"
#include "server/dataset/packed_entries.h"
#include "server/dataset/packed_names.h"
#include "server/memory/index_memory.h"
#include "server/storage/storage.h"

namespace pinfeed {

// Purpose: one scan. Most of the time of a scan of a cold disk is waiting, so there are more threads than
// processors. Directories whose entries are known from an earlier scan are opened, but not listed. While it
// lasts, the log says every few seconds how far it is.
// Owns: its threads, while Run runs. Threads: one calls Run, which blocks as long as the storage does.
// Errors: those of the storage and of `take`, with the path. Of several errors, the one in the first start,
// and there in the first directory by bytewise order. kInvalidArgument if within a start a symbolic link
// leads to a directory that was found before, or to the dataset itself: otherwise, a scan might never end.
class FolderScan {
 public:
  // Decides about an entry that is not a directory: whether the format takes it. Any thread calls it.
  using Take = std::function<Result<bool>(std::string_view directory, const DirectoryEntry& entry)>;
  struct Options {
    IndexStore* store = nullptr;  // null: nothing is kept
    // The clock of the file system (Unix time in ns), for tests.
    std::function<int64_t()> now = nullptr;
    std::chrono::steady_clock::duration progress_interval = std::chrono::seconds(5);
    uint64_t max_kept_bytes = IndexStore::kMaxFileBytes;
    HostMemoryLedger& ledger = HostMemoryLedger::ForThisProcess();
  };

  struct Folder {
    std::string path;   // relative to the dataset
    PackedNames names;  // of files that were taken, sorted by SortByName; at least one
  };

  // A start or a directory below one, with or without files, and its version when its listing began.
  struct Listed {
    std::string path;  // relative to the dataset
    NodeVersion version;
  };

  // `dataset_id` is the id of `base` itself.
  FolderScan(const Location& base, NodeId dataset_id, Take take, Options options);
  FolderScan(const Location& base, NodeId dataset_id, Take take)
      : FolderScan(base, dataset_id, std::move(take), Options()) {}

  ~FolderScan();

  // The error for a dataset whose names take too much memory.
  static Status TooLarge(const Location& base);

  // Scans the directories `starts`, which are entries of the dataset, and all below them. Returns the
  // folders of each start, sorted by path. Call it once.
  Result<std::vector<std::vector<Folder>>> Run(const std::vector<std::string>& starts) PF_EXCLUDES(mutex_);
  // After Run: the directories whose versions the storage knows, in any order. Nothing if one changed while
  // it was listed, or so shortly before that another change may have the same time: another scan may find
  // more.
  std::optional<std::vector<Listed>> TakeListed() PF_EXCLUDES(mutex_);

 private:
  struct Task {
    size_t start = 0;
    std::string path;
  };
  // What a thread found in one directory.
  struct Found {
    NodeId id;
    Folder folder;
    std::vector<std::string> below;  // directories
    std::optional<NodeVersion> version;
    bool changed = false;        // while it was listed, or shortly before
    bool keep = false;           // the entries for the next scan
    std::string entries;         // packed; empty if they are known
    uint64_t entries_bytes = 0;  // also of known ones
    bool recalled = false;
    bool memory_asked = false;  // by Look, for all of this
  };
  struct Error {
    size_t start = 0;
    std::string path;
    Status status;
  };
  struct Kept {
    NodeVersion version;
    std::string entries;
    bool recalled = false;  // its entries are in saved_
  };

  // Starts threads as they are needed, and logs progress, until all is done.
  void Supervise() PF_EXCLUDES(mutex_);
  std::string ProgressText() const PF_REQUIRES(mutex_);
  void Work() PF_EXCLUDES(mutex_);
  // Waits for the next directory; empty at the end.
  std::optional<Task> Next() PF_EXCLUDES(mutex_);
  Result<Found> Look(const Task& task) const;
  void Merge(const Task& task, Result<Found> result) PF_EXCLUDES(mutex_);
  void Abandon(std::exception_ptr thrown) PF_EXCLUDES(mutex_);
  // What no scan can do without is lacking: no other directory is looked into.
  void Stop() PF_REQUIRES(mutex_);
  bool Finished() const PF_REQUIRES(mutex_) { return active_ == 0 && pending_.empty(); }
  void Fail(const Task& task, Status status) PF_REQUIRES(mutex_);
  // Keeps the entries for the next scan. Keeps nothing at all once they are too many for the store.
  void Keep(Found& found) PF_REQUIRES(mutex_);
  void Save() PF_REQUIRES(mutex_);

  const Location& base_;
  const NodeId dataset_id_;
  const Take take_;
  const Options options_;

  Mutex mutex_;
  CondVar changed_;
  IndexMemory memory_ PF_GUARDED_BY(mutex_){options_.ledger};  // destroyed after what the scan found
  std::optional<SavedIndex> saved_;                            // from the last scan
  std::vector<std::thread> threads_;                           // of Run's thread only
  bool stopped_ PF_GUARDED_BY(mutex_) = false;
  std::vector<Task> pending_ PF_GUARDED_BY(mutex_);  // the next one last
  size_t active_ PF_GUARDED_BY(mutex_) = 0;          // directories that threads are looking into
  std::map<std::pair<size_t, NodeId>, std::string> seen_ PF_GUARDED_BY(mutex_);  // by start; the path
  std::vector<std::vector<Folder>> folders_ PF_GUARDED_BY(mutex_);
  std::vector<Listed> listed_ PF_GUARDED_BY(mutex_);
  bool changed_meanwhile_ PF_GUARDED_BY(mutex_) = false;
  std::vector<Kept> kept_ PF_GUARDED_BY(mutex_);
  uint64_t kept_bytes_ PF_GUARDED_BY(mutex_) = 0;  // of their file
  std::optional<Error> error_ PF_GUARDED_BY(mutex_);
  std::exception_ptr thrown_ PF_GUARDED_BY(mutex_);
  uint64_t bytes_ PF_GUARDED_BY(mutex_) = 0;
  uint64_t files_ PF_GUARDED_BY(mutex_) = 0;
  IndexStore::Counts counts_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
