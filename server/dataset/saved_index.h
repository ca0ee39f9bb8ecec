// SPDX-License-Identifier: Apache-2.0
// What was found in the directories or shards of a dataset, kept in a file from one open to the next. In: the
// bytes of such a file, which may be damaged or forged. Out: the contents of those that have not changed.
//
// The file: the magic number, the number of nodes, a checksum of all that follows; then one record a node
// (its version, and where its contents end), in ascending order of versions; then all contents.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "server/storage/storage.h"

namespace pinfeed {

// A directory or a shard.
struct SavedNode {
  NodeVersion version;
  std::string_view contents;  // packed
};

// The size of their file, or more if some have equal versions.
uint64_t SavedIndexBytes(const std::vector<SavedNode>& nodes);
// What the file has for each node besides its contents.
inline constexpr uint64_t kSavedNodeBytes = 48;

// Sorts `nodes`, removes all but one of those with equal versions, and returns the bytes of their file.
std::string EncodeSavedIndex(std::vector<SavedNode>& nodes);

// Purpose: the content of such a file. Owns its bytes. Threads: immutable.
// Errors: kDataLoss for bytes that EncodeSavedIndex cannot have made. Contents may still be impossible ones.
class SavedIndex {
 public:
  static Result<SavedIndex> Parse(std::string bytes);

  uint64_t size() const { return nodes_; }
  // Returns the contents of this version of a node. Valid as long as this object is in place. Empty: it is
  // not here.
  std::optional<std::string_view> Find(const NodeVersion& version) const;
  SavedNode At(uint64_t i) const;  // in ascending order of versions

 private:
  explicit SavedIndex(std::string bytes, uint64_t nodes) : bytes_(std::move(bytes)), nodes_(nodes) {}
  std::string bytes_;
  uint64_t nodes_;
};

}  // namespace pinfeed
