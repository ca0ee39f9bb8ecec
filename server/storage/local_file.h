// SPDX-License-Identifier: Apache-2.0
// Access to the local file system. In: a path from a user, and the allowed roots. Out: open files and
// directories below one of these roots. No link, rename or ".." can escape it, since the kernel checks each
// component (openat2(2), RESOLVE_BENEATH).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "server/storage/storage.h"

namespace pinfeed {

// The id of the file system of an open file or directory, if its versions (FileVersion, NodeVersion) tell
// whether it has changed. Not those of file systems that store whatever times they are given.
Result<std::optional<uint64_t>> FileSystemWithVersions(int fd);

// What statx(2) says of a file or directory.
struct NodeStat {
  mode_t mode = 0;
  FileVersion version;
};
// Of the entry `name` of an open directory, and not of what it links to; of the open node itself if `name` is
// empty. `sync`: AT_STATX_FORCE_SYNC asks a file server anew, instead of what this host remembers of it.
// Empty: errno says why.
std::optional<NodeStat> StatNode(int fd, const char* name, int sync = 0);

// Purpose: remembers of the mount that was asked for last whether its file system has versions, since asking
// may take a round trip to a server. Threads: any. Errors: a mount that cannot be asked has none.
class VersionedMount {
 public:
  // `fd`: of the file of this version.
  bool Has(int fd, const FileVersion& version);

 private:
  // Twice the mount, or the device where that is unknown, and 1 if it has versions; 0: none was asked for.
  std::atomic<uint64_t> last_{0};
};

// Purpose: a file on a mounted file system. Owns the descriptor.
class LocalFile final : public RandomAccessFile {
 public:
  std::optional<FileVersion> version() const override;
  std::optional<NodeVersion> lasting_version() const override;
  int64_t changed_ns() const override { return version_.changed_ns; }
  bool HasSameContents(Asked asked) const override;
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override;
  Prefetched Prefetch(uint64_t offset, uint64_t bytes) const override;

 private:
  friend class LocalPath;
  LocalFile(UniqueFd fd, std::string path, const FileVersion& version,
            std::shared_ptr<VersionedMount> versioned)
      : RandomAccessFile(std::move(path), version.size),
        fd_(std::move(fd)),
        version_(version),
        versioned_(std::move(versioned)) {}
  const UniqueFd fd_;
  const FileVersion version_;
  const std::shared_ptr<VersionedMount> versioned_;
};

// Purpose: a path below an allowed root. Owns: a descriptor of the root. Threads: any; it is immutable.
// Errors: kPermissionDenied for what lies outside the root; other errors are the system's, with the path.
// Invariant: everything is opened by openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS) on the root.
// A symbolic link may lead anywhere below the root.
class LocalPath final : public Location {
 public:
  // Chooses the longest of `allowed_roots` that textually contains `path`, and opens that root, which may be
  // a link. The path need not exist. kInvalidArgument if `path` is empty, relative, or has a ".." or NUL.
  // kPermissionDenied if no root contains it.
  static Result<LocalPath> Resolve(std::string_view path, const std::vector<std::string>& allowed_roots);
  // See PathLinks. What cannot be followed is left to later uses, which say why.
  void FollowLinks();

  const std::string& path() const override { return path_; }  // without "." and doubled slashes
  Result<std::unique_ptr<const RandomAccessFile>> OpenFile(std::string_view below) const override;
  using Location::List;
  // Lists in the order of the file system. kPermissionDenied names a link that leaves the root.
  Result<Listing> List(std::string_view below, const Visit& visit, const Recall& recall) const override;
  Result<NodeKind> Kind(std::string_view below) const override;
  // Follows links within the root only.
  Result<Stamp> StampOf(std::string_view below) const override;
  Result<std::shared_ptr<const Location>> Parent() const override;

  Result<UniqueFd> OpenDirectory(std::string_view below) const;
  // The directory that holds it.
  Result<UniqueFd> OpenParent(std::string_view below) const;
  Result<UniqueFd> OpenNode(std::string_view below) const;  // of any kind, for inspection only (O_PATH)

 private:
  LocalPath(UniqueFd root, std::string root_path, std::string path, std::string relative)
      : root_(std::move(root)),
        root_path_(std::move(root_path)),
        path_(std::move(path)),
        relative_(std::move(relative)) {}
  Result<UniqueFd> Open(std::string_view below, uint64_t flags) const;
  // Returns an empty handle and sets `error_number` if `relative` cannot be opened below the root.
  UniqueFd OpenBeneath(const std::string& relative, uint64_t flags, int* error_number) const;

  UniqueFd root_;
  std::string root_path_;
  std::string path_;
  std::string relative_;  // path_ without the root, or what its links led to; "." for the root itself
  std::shared_ptr<VersionedMount> versioned_ = std::make_shared<VersionedMount>();  // of its files
};

}  // namespace pinfeed
