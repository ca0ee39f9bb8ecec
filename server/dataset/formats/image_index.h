// SPDX-License-Identifier: Apache-2.0
// The index of an image folder. In: class directories, walked once. Out: the path and label of sample i.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/dataset/fingerprint.h"
#include "server/dataset/folder_scan.h"
#include "server/dataset/packed_names.h"
#include "server/storage/storage.h"

namespace pinfeed {

// Purpose: a compact list of an image folder's samples. A file takes its name and 4 bytes; a directory takes
// its path. Threads: built by one thread; const methods from any thread afterwards. Errors name the file or
// directory. Invariant: the ends of directories_ ascend.
class ImageIndex {
 public:
  // `store` has what is known from an earlier open; null: nothing is.
  static Result<ImageIndex> Build(const Location& base, IndexStore* store);

  uint64_t samples() const { return names_.size(); }
  const std::vector<std::string>& classes() const { return classes_; }  // raw names, by label
  uint32_t Label(uint64_t id) const { return DirectoryOf(id).label; }
  std::string Path(uint64_t id) const;  // relative to the dataset: "cat/0001.jpg"
  size_t longest_path() const { return longest_path_; }
  std::string FingerprintHex() const;
  // Whether the directories of the classes and those below still have the entries that were found. Looks at
  // none if there are more than kMaxChecked, and for kMaxCheckTime at most. What links lead to may have
  // changed.
  bool IsCurrent(const Location& base) const;

 private:
  static constexpr size_t kMaxChecked = 65536;  // each takes some microseconds on a local file system
  static constexpr std::chrono::seconds kMaxCheckTime{4};
  struct Directory {
    std::string path;
    uint32_t label;
    uint64_t end;  // one past its last sample
  };
  const Directory& DirectoryOf(uint64_t id) const;
  void Add(FolderScan::Folder folder, uint32_t label);
  void LimitChecked(const Location& base);

  std::vector<std::string> classes_;
  std::vector<Directory> directories_;  // those that hold images, in order
  PackedNames names_;                   // the files' names, by sample
  // That IsCurrent looks at. nullopt: one changed while it was listed or shortly before, so that entries may
  // be missing.
  std::optional<std::vector<FolderScan::Listed>> checked_;
  size_t longest_path_ = 0;  // in bytes
};

}  // namespace pinfeed
