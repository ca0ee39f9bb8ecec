// SPDX-License-Identifier: Apache-2.0
// The door to the disk. In: a path that a user named and the roots the operator allows. Out: open files and
// directories that are certain to lie below one of these roots, whatever links, renames or ".." try: the
// kernel checks each component (openat2(2), RESOLVE_BENEATH).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Purpose: an open regular file. Owns the descriptor. Immutable, so every method may be called from any
// thread at once; reads may block on the disk. Errors name the file.
class LocalFile {
 public:
  const std::string& path() const { return path_; }  // absolute, raw bytes
  uint64_t size() const { return size_; }            // when it was opened

  // Fills `out` from `offset`. kDataLoss with the numbers when the file ends before.
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const;
  // The file as it was when opened. kDataLoss when it is empty, larger than `max_bytes`, or was cut since.
  Status ReadAll(uint64_t max_bytes, std::vector<std::byte>& out) const;

 private:
  friend class LocalPath;
  LocalFile(UniqueFd fd, std::string path, uint64_t size)
      : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}
  UniqueFd fd_;
  std::string path_;
  uint64_t size_;
};

enum class NodeKind { kFile, kDirectory, kOther };

// Which directory it is, by whatever name: two paths lead to the same one when these are equal.
struct NodeId {
  dev_t device = 0;
  ino_t inode = 0;
  auto operator<=>(const NodeId&) const = default;
};

// Purpose: a path below an allowed root, and the way to open what lies at and below it.
// Owns: a descriptor of the root. Threads: immutable, all methods from any thread. Errors name the path.
// Invariant: nothing is ever opened but through openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS) on the root.
// A symbolic link may lead anywhere below the root.
class LocalPath {
 public:
  // Chooses the longest of `allowed_roots` that holds `path`, by text, and opens it (a root may be a link
  // itself). kInvalidArgument: `path` is empty, relative, or has a ".." or NUL. kPermissionDenied: no root
  // holds it. The path itself need not exist.
  static Result<LocalPath> Resolve(std::string_view path, const std::vector<std::string>& allowed_roots);

  const std::string& path() const { return path_; }  // absolute, without "." and doubled slashes

  // In all of these `below` is relative to path(), without leading slash; empty is path() itself.
  Result<LocalFile> OpenFile(
      std::string_view below) const;  // kInvalidArgument unless it is a regular file; never blocks on a FIFO
  Result<UniqueFd> OpenDirectory(std::string_view below) const;
  Result<UniqueFd> OpenNode(std::string_view below) const;  // whatever it is, to be looked at (O_PATH)
  Result<NodeKind> Kind(std::string_view below) const;      // links are followed
  std::string FullPath(std::string_view below) const;

 private:
  LocalPath(UniqueFd root, std::string root_path, std::string path, std::string relative)
      : root_(std::move(root)),
        root_path_(std::move(root_path)),
        path_(std::move(path)),
        relative_(std::move(relative)) {}
  Result<UniqueFd> Open(std::string_view below, uint64_t flags) const;
  // None, and why, when `relative` cannot be opened below the root.
  UniqueFd OpenBeneath(const std::string& relative, uint64_t flags, int* error_number) const;

  UniqueFd root_;
  std::string root_path_;
  std::string path_;
  std::string relative_;  // path_ without the root; "." for the root itself
};

// kInternal with the errno when `directory` is no open descriptor.
Result<NodeId> IdOf(const UniqueFd& directory);

}  // namespace pinfeed
