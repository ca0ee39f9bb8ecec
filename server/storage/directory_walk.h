// SPDX-License-Identifier: Apache-2.0
// What lies in a directory. In: a directory below an allowed root. Out: its entries one by one, with links
// resolved, never all at once.
#pragma once

#include <functional>
#include <string_view>

#include "server/storage/local_file.h"

namespace pinfeed {

enum class EntryKind {
  kFile,
  kDirectory,
  kDangling,  // a symbolic link to nothing, or an entry that vanished meanwhile
  kOther,     // FIFO, socket, device
};

struct DirectoryEntry {
  std::string_view name;  // raw bytes without slash; valid during the visit
  EntryKind kind;
};

// Calls `visit` for every entry but "." and "..", in the order of the file system, and gives back the
// directory's identity. Stops at the first error, of the directory, of a link that leaves the root
// (kPermissionDenied naming it) or of the visit.
Result<NodeId> ScanDirectory(const LocalPath& base, std::string_view below,
                             const std::function<Status(const DirectoryEntry&)>& visit);

// "a/b", or "b" when `directory` is empty.
std::string JoinPath(std::string_view directory, std::string_view name);

}  // namespace pinfeed
