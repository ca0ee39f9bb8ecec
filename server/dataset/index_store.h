// SPDX-License-Identifier: Apache-2.0
// A directory of the daemon with what it has found out about datasets. In: what the directories or shards of
// a dataset have. Out: the same at the next open, unless it is unusable.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log_pace.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "server/dataset/saved_index.h"
#include "server/memory/index_memory.h"

namespace pinfeed {

// Whose contents are kept.
enum class NodesOf { kImageFolder, kShards };

// Purpose: keeps one file of SavedIndex for each dataset. The files take at most kMaxBytes; those that were
// used last stay. Several daemons of one user may share the directory, since files are only replaced whole.
// Owns: the directory's descriptor. Threads: any; each call blocks on the disk.
// Errors: of Open only. Otherwise a file that cannot be read or written is logged and left out, since an
// open can always do without. Invariant: files and a directory that another user owns or may write are not
// used.
class IndexStore {
 public:
  static constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 31;
  static constexpr size_t kMaxFiles = 4096;

  // Makes the directory if need be.
  static Result<std::unique_ptr<IndexStore>> Open(std::string directory);

  // `dataset` is the path of its Location. `memory` is asked for what is read or written.
  std::optional<SavedIndex> Load(NodesOf kind, std::string_view dataset, IndexMemory& memory);
  // Changes `nodes` as EncodeSavedIndex does.
  void Save(NodesOf kind, std::string_view dataset, std::vector<SavedNode>& nodes, IndexMemory& memory);

  // Directories of all scans since the start.
  struct Counts {
    uint64_t listed = 0;    // read from the storage
    uint64_t recalled = 0;  // their entries came from here
  };
  void Count(const Counts& scan);
  Counts counts() const { return {listed_.load(), recalled_.load()}; }

 private:
  IndexStore(std::string path, UniqueFd directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}
  Result<std::optional<SavedIndex>> Read(const std::string& name, IndexMemory& memory) const;
  Status Write(const std::string& name, std::string_view bytes);
  // Removes the store's files that were used longest ago until a file of `bytes` has room, and temporary ones
  // that an ended daemon left.
  Status MakeRoom(uint64_t bytes) const;
  void Warn(const Status& status, std::string_view consequence);

  const std::string path_;
  const UniqueFd directory_;
  std::atomic<uint64_t> listed_{0};
  std::atomic<uint64_t> recalled_{0};
  LogPace warnings_{1};
};

}  // namespace pinfeed
