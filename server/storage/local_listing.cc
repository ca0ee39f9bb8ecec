// SPDX-License-Identifier: Apache-2.0
// Lists local directories: LocalPath's List and Stamp.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
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
Result<NodeVersion> VersionOf(int directory) {
  const std::optional<NodeStat> stat = StatNode(directory, "");
  if (!stat) return ErrnoStatus("stat an open directory", errno);
  ASSIGN_OR_RETURN(const std::optional<uint64_t> system, FileSystemWithVersions(directory));
  const FileVersion& version = stat->version;
  return NodeVersion{{version.device, version.inode},
                     system.value_or(NodeVersion::kUnreliable),
                     version.modified_ns,
                     version.changed_ns};
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
    if (kind.status().code() == Code::kNotFound || kind.status().native_error() == ELOOP)
      return EntryKind::kDangling;
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

void MixStat(const NodeStat& stat, Stamp& stamp) {
  const FileVersion& version = stat.version;
  for (const uint64_t value :
       {version.mount, version.device, version.inode, version.size,
        static_cast<uint64_t>(version.modified_ns), static_cast<uint64_t>(version.changed_ns)}) {
    Mix(value, stamp.value);
  }
  stamp.changed_ns = std::max(stamp.changed_ns, version.changed_ns);
}

// The target of a link, followed as for reading the dataset. A link that is dangling or leaves the root is
// not a file of the dataset.
void MixTarget(const LocalPath& base, std::string_view link, Stamp& stamp) {
  const Result<UniqueFd> node = base.OpenNode(link);
  if (!node.ok()) return;
  if (const std::optional<NodeStat> target = StatNode(node->get(), "")) MixStat(*target, stamp);
}

}  // namespace

Result<Location::Listing> LocalPath::List(std::string_view below, const Visit& visit,
                                          const Recall& recall) const {
  ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectory(below));
  const auto version_of = [&](int directory) {
    return VersionOf(directory).WithContext("list " + QuotePath(FullPath(below)));
  };
  ASSIGN_OR_RETURN(const NodeVersion before, version_of(fd.get()));
  if (recall && recall(before)) return Listing{.id = before.id, .recalled = true, .version = before};
  const UniqueDirectoryStream dir = ReadDirectory(std::move(fd));
  if (!dir) return ErrnoStatus("list " + QuotePath(FullPath(below)), errno);
  Listing listing{before.id};
  while (const dirent* const entry = NextEntry(dir)) {
    listing.may_have_links |= entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN;
    ASSIGN_OR_RETURN(const EntryKind kind, KindOf(*this, below, *entry));
    RETURN_IF_ERROR(visit({entry->d_name, kind}));
  }
  if (errno != 0) return ErrnoStatus("list " + QuotePath(FullPath(below)), errno);
  ASSIGN_OR_RETURN(const NodeVersion after, version_of(::dirfd(dir.get())));
  listing.changed = after != before;
  listing.version = before;
  return listing;
}

Result<UniqueFd> LocalPath::OpenParent(std::string_view below) const {
  if (!below.empty()) {
    const size_t slash = below.rfind('/');
    return OpenNode(slash == std::string_view::npos ? "" : below.substr(0, slash));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const Location> holder, Parent());
  return static_cast<const LocalPath&>(*holder).OpenNode("");
}

Result<Stamp> LocalPath::StampOf(std::string_view below) const {
  ASSIGN_OR_RETURN(const UniqueFd node, OpenNode(below));
  const std::optional<NodeStat> stat = StatNode(node.get(), "");
  if (!stat) return ErrnoStatus("stat " + QuotePath(FullPath(below)), errno);
  Stamp stamp{kStart, 0, {stat->version.device, stat->version.inode}};
  MixStat(*stat, stamp);
  if (!S_ISDIR(stat->mode)) {
    ASSIGN_OR_RETURN(const UniqueFd parent, OpenParent(below));
    const std::optional<NodeStat> directory = StatNode(parent.get(), "");
    if (!directory) return ErrnoStatus("stat the directory of " + QuotePath(FullPath(below)), errno);
    stamp.node = {directory->version.device, directory->version.inode};
    for (const uint64_t value :
         {directory->version.mount, directory->version.device, directory->version.inode})
      Mix(value, stamp.value);
    return stamp;
  }
  ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectory(below));
  const UniqueDirectoryStream directory = ReadDirectory(std::move(fd));
  if (!directory) return ErrnoStatus("list " + QuotePath(FullPath(below)), errno);
  Stamp of_all = stamp;
  uint64_t entries = 0;
  size_t count = 0;
  while (const dirent* const entry = NextEntry(directory)) {
    if (++count > kMaxStamped) return stamp;
    const std::optional<NodeStat> of_entry = StatNode(::dirfd(directory.get()), entry->d_name);
    if (!of_entry) continue;
    Stamp one{kStart, of_all.changed_ns, {}};
    MixStat(*of_entry, one);
    if (S_ISLNK(of_entry->mode)) MixTarget(*this, JoinPath(below, entry->d_name), one);
    entries += one.value;  // a sum, since readdir has no order
    of_all.changed_ns = one.changed_ns;
  }
  if (errno != 0) return ErrnoStatus("list " + QuotePath(FullPath(below)), errno);
  Mix(entries, of_all.value);
  return of_all;
}

}  // namespace pinfeed
