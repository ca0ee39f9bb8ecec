// SPDX-License-Identifier: Apache-2.0
// The entries of a directory in one string, as they are kept for the next scan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/storage/storage.h"

namespace pinfeed {

// Purpose: the entries of one directory in one string. An entry is one byte for its kind, two for the length
// of its name (little-endian), and the name. Threads: a value.
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

}  // namespace pinfeed
