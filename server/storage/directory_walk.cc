// SPDX-License-Identifier: Apache-2.0
#include "server/storage/directory_walk.h"

#include <dirent.h>

#include <cerrno>

#include "common/base/quote.h"

namespace pinfeed {
namespace {

struct DirTraits {
  using Handle = DIR*;
  static constexpr Handle Null() { return nullptr; }
  static void Close(Handle handle) noexcept { ::closedir(handle); }
};
using UniqueDir = UniqueHandle<DirTraits>;

// Links, and every entry on file systems that do not tell its type, cost an open; others are taken at the
// directory's word, which is enough because each later open checks again.
Result<EntryKind> KindOf(const LocalPath& base, std::string_view below, const dirent& entry) {
  switch (entry.d_type) {
    case DT_REG:
      return EntryKind::kFile;
    case DT_DIR:
      return EntryKind::kDirectory;
    case DT_LNK:
    case DT_UNKNOWN:
      break;
    default:
      return EntryKind::kOther;
  }
  const Result<NodeKind> kind = base.Kind(JoinPath(below, entry.d_name));
  if (!kind.ok()) {
    if (kind.status().code() == Code::kNotFound) return EntryKind::kDangling;
    return kind.status();
  }
  switch (*kind) {
    case NodeKind::kFile:
      return EntryKind::kFile;
    case NodeKind::kDirectory:
      return EntryKind::kDirectory;
    case NodeKind::kOther:
      break;
  }
  return EntryKind::kOther;
}

}  // namespace

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty()) path += '/';
  return path.append(name);
}

Result<NodeId> ScanDirectory(const LocalPath& base, std::string_view below,
                             const std::function<Status(const DirectoryEntry&)>& visit) {
  ASSIGN_OR_RETURN(UniqueFd fd, base.OpenDirectory(below));
  ASSIGN_OR_RETURN(const NodeId id, IdOf(fd));
  const UniqueDir dir(::fdopendir(fd.get()));
  if (!dir) return ErrnoStatus("list " + QuotePath(base.FullPath(below)), errno);
  static_cast<void>(fd.release());  // closedir closes it
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) {
      if (errno != 0) return ErrnoStatus("list " + QuotePath(base.FullPath(below)), errno);
      return id;
    }
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    ASSIGN_OR_RETURN(const EntryKind kind, KindOf(base, below, *entry));
    RETURN_IF_ERROR(visit({name, kind}));
  }
}

}  // namespace pinfeed
