// SPDX-License-Identifier: Apache-2.0
// Where the bytes of datasets lie: what a storage must be able to do. In: a place that a user named. Out: its
// listing, and files of which any part can be read.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace pinfeed {

// Purpose: an open regular file, or object. Immutable, so every method may be called from any thread at once.
// Reads may block for as long as the storage takes. Errors name the file.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  const std::string& path() const { return path_; }  // absolute path or URI, raw bytes
  uint64_t size() const { return size_; }            // when it was opened

  // Fills `out` from `offset`. kDataLoss with the numbers when the file ends before.
  virtual Status ReadAt(uint64_t offset, std::span<std::byte> out) const = 0;
  // The file as it was when opened. kDataLoss when it is empty, larger than `max_bytes`, or was cut since.
  Status ReadAll(uint64_t max_bytes, std::vector<std::byte>& out) const;

 protected:
  RandomAccessFile(std::string path, uint64_t size) : path_(std::move(path)), size_(size) {}
  // What a read that ended early says; `got` bytes came.
  Status Truncated(uint64_t offset, size_t wanted, size_t got) const;
  // "read 8 bytes at offset 0 of '/data/a'"
  std::string ReadText(uint64_t offset, size_t wanted) const;

 private:
  const std::string path_;
  const uint64_t size_;
};

enum class NodeKind { kFile, kDirectory, kOther };

// Which directory it is, by whatever name: two paths lead to the same one when these are equal. Of a storage
// without links, a hash of the path.
struct NodeId {
  uint64_t device = 0;
  uint64_t inode = 0;
  auto operator<=>(const NodeId&) const = default;
};

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

// Purpose: a place that a user named, and the way to what lies at and below it. Threads: immutable, all
// methods from any thread; each may block for as long as the storage takes. Errors name the path.
class Location {
 public:
  using Visit = std::function<Status(const DirectoryEntry&)>;

  Location() = default;
  virtual ~Location() = default;

  virtual const std::string& path() const = 0;  // absolute path or URI, raw bytes
  // Reads may take long, so no decoding thread may make them.
  virtual bool remote() const { return false; }

  // In all of these `below` is relative to path(), without leading slash; empty is path() itself.
  // kInvalidArgument unless it is a regular file.
  virtual Result<std::unique_ptr<const RandomAccessFile>> OpenFile(std::string_view below) const = 0;
  // Calls `visit` for every entry of a directory but "." and "..", in any order, and returns the directory's
  // identity. Stops at the first error, of the directory, of an entry or of the visit.
  virtual Result<NodeId> List(std::string_view below, const Visit& visit) const = 0;
  virtual Result<NodeKind> Kind(std::string_view below) const = 0;  // links are followed
  // Differs when the file or directory at path(), or an entry directly in it, has changed.
  virtual Result<uint64_t> Stamp() const = 0;

  // The directory that holds path(). kPermissionDenied when it is out of reach.
  virtual Result<std::shared_ptr<const Location>> Parent() const = 0;

  std::string FullPath(std::string_view below) const;

 protected:
  Location(const Location&) = default;
  Location(Location&&) = default;
  Location& operator=(const Location&) = default;
  Location& operator=(Location&&) = default;
};

// The place that `uri` names: an absolute path, below one of `allowed_roots` (LocalPath).
Result<std::shared_ptr<const Location>> ResolveLocation(std::string_view uri,
                                                        const std::vector<std::string>& allowed_roots);

// "a/b", or "b" when `directory` is empty.
std::string JoinPath(std::string_view directory, std::string_view name);

}  // namespace pinfeed
