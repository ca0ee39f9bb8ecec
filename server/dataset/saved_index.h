// SPDX-License-Identifier: Apache-2.0
// The entries of a dataset's directories, kept in a file from one open to the next. In: the bytes of such a
// file, which may be damaged or forged. Out: the entries of the directories that have not changed.
//
// The file: the magic number, the number of directories, a checksum of all that follows; then one record a
// directory (its version, and where its entries end), in ascending order of versions; then all entries. An
// entry is one byte for its kind, two for the length of its name, and the name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "server/storage/storage.h"

namespace pinfeed {

// Purpose: the entries of one directory in one string. Threads: a value.
class PackedEntries {
 public:
  static constexpr size_t kMaxNameBytes = UINT16_MAX;

  PackedEntries() = default;
  // Precondition: IsValid(bytes).
  explicit PackedEntries(std::string_view bytes) : bytes_(bytes) {}
  // Precondition: name.size() <= kMaxNameBytes.
  static void Append(const DirectoryEntry& entry, std::string& bytes);
  // Whether these are whole entries with possible names, of kinds that belong to a directory's version.
  static bool IsValid(std::string_view bytes);

  std::string_view bytes() const { return bytes_; }
  // Removes the first entry and returns it; empty at the end.
  std::optional<DirectoryEntry> Next();

 private:
  std::string_view bytes_;  // the rest
};

struct SavedNode {
  NodeVersion version;
  std::string_view entries;  // packed
};

// The size of their file, or more if some have equal versions.
uint64_t SavedIndexBytes(const std::vector<SavedNode>& folders);
// What the file has for each directory besides its entries.
inline constexpr uint64_t kSavedNodeBytes = 48;

// Sorts `folders`, removes all but one of those with equal versions, and returns the bytes of their file.
std::string EncodeSavedIndex(std::vector<SavedNode>& folders);

// Purpose: the content of such a file. Owns its bytes. Threads: immutable.
// Errors: kDataLoss for bytes that EncodeSavedIndex cannot have made.
class SavedIndex {
 public:
  static Result<SavedIndex> Parse(std::string bytes);

  uint64_t size() const { return folders_; }
  // Returns the entries of this version of a directory, sorted by name as they were saved. Valid as long as
  // this object is in place. Empty: it is not here.
  std::optional<PackedEntries> Find(const NodeVersion& version) const;
  SavedNode At(uint64_t i) const;  // in ascending order of versions

 private:
  explicit SavedIndex(std::string bytes, uint64_t folders) : bytes_(std::move(bytes)), folders_(folders) {}
  std::string bytes_;
  uint64_t folders_;
};

}  // namespace pinfeed
