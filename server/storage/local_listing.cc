// SPDX-License-Identifier: Apache-2.0
// Lists local directories: LocalPath's List and Stamp.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/quote.h"
#include "common/os/directory_stream.h"
#include "server/storage/local_file.h"

namespace pinfeed {
namespace {

constexpr uint64_t kStart = 0xcbf29ce484222325ULL;

// What an open directory is at this moment.
struct FolderState {
  NodeId id;
  std::optional<FolderVersion> version;  // empty: its file system has none
};

Result<FolderState> StateOf(int directory) {
  struct stat info = {};
  if (::fstat(directory, &info) != 0) return ErrnoStatus("stat an open directory", errno);
  FolderState state{{info.st_dev, info.st_ino}, std::nullopt};
  ASSIGN_OR_RETURN(const std::optional<uint64_t> system, FileSystemWithVersions(directory));
  if (system) state.version = {state.id, *system, Nanoseconds(info.st_mtim), Nanoseconds(info.st_ctim)};
  return state;
}

// Opens links, and entries whose type the file system does not report. For other entries, uses the type in
// the directory, which is sufficient because each later open checks again.
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

void Mix(uint64_t value, uint64_t& hash) {  // FNV-1a over 64-bit words; only distinguishes stamps
  hash = (hash ^ value) * 0x100000001b3ULL;
}

void MixStat(const struct stat& info, uint64_t& hash) {
  for (const uint64_t value :
       {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino),
        static_cast<uint64_t>(info.st_size), static_cast<uint64_t>(info.st_mtim.tv_sec),
        static_cast<uint64_t>(info.st_mtim.tv_nsec), static_cast<uint64_t>(info.st_ctim.tv_sec),
        static_cast<uint64_t>(info.st_ctim.tv_nsec)}) {
    Mix(value, hash);
  }
}

// The target of a link, followed as for reading the dataset. A link that is dangling or leaves the root is
// not a file of the dataset.
void MixTarget(const LocalPath& base, std::string_view link, uint64_t& hash) {
  struct stat target {};
  const Result<UniqueFd> node = base.OpenNode(link);
  if (node.ok() && ::fstat(node->get(), &target) == 0) MixStat(target, hash);
}

}  // namespace

Result<Location::Listing> LocalPath::List(std::string_view below, const Visit& visit,
                                          const Recall& recall) const {
  ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectory(below));
  ASSIGN_OR_RETURN(const FolderState before, StateOf(fd.get()));
  if (recall && before.version && recall(*before.version))
    return Listing{.id = before.id, .recalled = true, .version = before.version};
  const UniqueDirectoryStream dir = ReadDirectory(std::move(fd));
  if (!dir) return ErrnoStatus("list " + QuotePath(FullPath(below)), errno);
  bool has_links = false;  // what these lead to may change without the directory
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) {
      if (errno != 0) return ErrnoStatus("list " + QuotePath(FullPath(below)), errno);
      break;
    }
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    has_links |= entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN;
    ASSIGN_OR_RETURN(const EntryKind kind, KindOf(*this, below, *entry));
    RETURN_IF_ERROR(visit({name, kind}));
  }
  Listing listing{before.id};
  ASSIGN_OR_RETURN(const FolderState after, StateOf(::dirfd(dir.get())));
  listing.changed = after.version != before.version;
  if (!has_links && !listing.changed) listing.version = before.version;
  return listing;
}

Result<uint64_t> LocalPath::Stamp() const {
  ASSIGN_OR_RETURN(const UniqueFd node, OpenNode(""));
  struct stat info {};
  if (::fstat(node.get(), &info) != 0) return ErrnoStatus("stat " + QuotePath(path_), errno);
  uint64_t hash = kStart;
  MixStat(info, hash);
  if (!S_ISDIR(info.st_mode)) return hash;
  ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectory(""));
  const UniqueDirectoryStream directory = ReadDirectory(std::move(fd));
  if (!directory) return ErrnoStatus("list " + QuotePath(path_), errno);
  uint64_t entries = 0;
  size_t count = 0;
  while (true) {
    errno = 0;
    const dirent* const entry =
        ::readdir(directory.get());  // NOLINT(concurrency-mt-unsafe): this stream is this thread's own
    if (entry == nullptr) {
      if (errno != 0) return ErrnoStatus("list " + QuotePath(path_), errno);
      break;
    }
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (++count > kMaxStamped) return hash;
    struct stat below {};
    constexpr int kAsItIs = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;
    if (::fstatat(::dirfd(directory.get()), entry->d_name, &below, kAsItIs) != 0) continue;
    uint64_t one = kStart;
    MixStat(below, one);
    if (S_ISLNK(below.st_mode)) MixTarget(*this, name, one);
    entries += one;  // a sum, since readdir has no order
  }
  Mix(entries, hash);
  return hash;
}

}  // namespace pinfeed
