// SPDX-License-Identifier: Apache-2.0
// The interface of a storage that holds datasets, such as the local file system. In: a path or URI from a
// user. Out: directory listings, and files of which any part can be read.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace pinfeed {

// Identifies a file, or a part of one (FileRange), and its contents: as long as it is equal, the file has not
// been written to or replaced.
// The kernel sets the time of the last change, and no program can set it back. It is as fine as the file
// system's clock, so two writes right after each other may leave it equal.
struct FileVersion {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t modified_ns = 0;  // Unix time of the last write, as programs may set it
  int64_t changed_ns = 0;   // Unix time of the last change, of whatever kind
  // Unix time at which a file was found to be this version, before it was read. It identifies nothing.
  int64_t seen_ns = INT64_MAX;
  uint64_t mount = 0;   // a number that no other mount has had; 0: unknown (before Linux 6.8)
  uint64_t offset = 0;  // where the part begins; `size` is then the part's

  bool operator==(const FileVersion& other) const {
    return mount == other.mount && device == other.device && inode == other.inode && offset == other.offset &&
           size == other.size && modified_ns == other.modified_ns && changed_ns == other.changed_ns;
  }
};

// Identifies a file or directory independent of its path: two paths with equal ids lead to the same one. A
// storage without links uses a hash of the path.
struct NodeId {
  uint64_t device = 0;
  uint64_t inode = 0;
  auto operator<=>(const NodeId&) const = default;
};

// Identifies a directory and the entries that it has, or a file and its contents, also after the file system
// was mounted anew: as long as it is equal, no entry was added, removed, renamed or replaced, and the file
// was not written to. Its times are those that the kernel sets with each such change. They are as fine as the
// file system's clock, so a change right after another may leave it equal.
struct NodeVersion {
  NodeId id;
  // Tells file systems apart that had the same device number in turn. kUnreliable: that of a file system
  // which may store whatever times it is given, so that an equal version proves nothing.
  uint64_t file_system = 0;
  int64_t modified_ns = 0;  // Unix time, as programs may set it
  int64_t changed_ns = 0;   // Unix time of the last change, of whatever kind
  auto operator<=>(const NodeVersion&) const = default;

  static constexpr uint64_t kUnreliable = UINT64_MAX;
  bool reliable() const { return file_system != kUnreliable; }
};

// See IsSettled.
inline constexpr std::chrono::nanoseconds kSettleTime = std::chrono::seconds(2);

inline int64_t UnixNanoseconds() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Whether what changed last at `changed_ns` had that time for so long, when it was looked at, that a later
// change has another time: also by a clock of whole seconds, or of a server whose clock is behind. Both are
// Unix times.
constexpr bool IsSettled(int64_t changed_ns, int64_t looked_ns) {
  return changed_ns <= looked_ns - kSettleTime.count();
}

// The latest time at which a file can have changed that says it changed at `changed_ns`: the clock of a file
// system ticks, and that of some has whole seconds.
constexpr int64_t LatestChange(int64_t changed_ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  constexpr int64_t kTick = kSecond / 50;  // the kernel's is 10 ms at most
  return changed_ns + (changed_ns % kSecond == 0 ? kSecond : kTick);
}

// What became of a Prefetch.
struct Prefetched {
  uint64_t bytes = 0;  // that were asked for
  bool cached = true;  // a read would not have waited for the storage

  void Add(const Prefetched& other) {
    bytes += other.bytes;
    cached = cached && other.cached;
  }
};

// Purpose: an open regular file, or an object of an object store. Immutable, so every method may be called
// from any thread at once. Reads may block for as long as the storage takes. Errors name the file.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  const std::string& path() const { return path_; }  // absolute path or URI, raw bytes
  uint64_t size() const { return size_; }            // in bytes, when the file was opened
  // What it was when it was opened. Empty: the storage has no versions that can be relied on. May ask it.
  virtual std::optional<FileVersion> version() const { return std::nullopt; }
  // The same for a longer time than this daemon runs. May ask the storage.
  virtual std::optional<NodeVersion> lasting_version() const { return std::nullopt; }
  // Unix time of its last change before it was opened, of whatever kind, which no program can set. 0: the
  // storage does not tell.
  virtual int64_t changed_ns() const { return 0; }
  // Whether size and time of the last write are still the same, by what this host remembers of a file
  // server's files, or by the server, which may block. True: the storage does not tell.
  enum class Asked { kHost, kServer };
  virtual bool HasSameContents(Asked /*asked*/) const { return true; }

  // Fills `out` with the bytes from `offset` on. kDataLoss if the file ends too early; the message says
  // where.
  virtual Status ReadAt(uint64_t offset, std::span<std::byte> out) const = 0;
  // Has the storage read these bytes ahead of a ReadAt, without waiting for them. May block for a while.
  virtual Prefetched Prefetch(uint64_t /*offset*/, uint64_t /*bytes*/) const { return {}; }
  // Reads size() bytes from the start. kDataLoss if the file was empty or larger than `max_bytes` when it was
  // opened, or is shorter now.
  Status ReadAll(uint64_t max_bytes, std::vector<std::byte>& out) const;

 protected:
  RandomAccessFile(std::string path, uint64_t size) : path_(std::move(path)), size_(size) {}
  // Returns the error for a read that got only `got` of the `wanted` bytes.
  Status Truncated(uint64_t offset, size_t wanted, size_t got) const;
  // Describes a read for messages: "read 8 bytes at offset 0 of '/data/a'".
  std::string ReadText(uint64_t offset, size_t wanted) const;

 private:
  const std::string path_;
  const uint64_t size_;
};

// What a path leads to.
enum class NodeKind { kFile, kDirectory, kOther };

// Whether a file or directory, or an entry directly in it, has changed. A file in another directory has
// another stamp, also if it is a hard link to the same: tables name the files beside them.
struct Stamp {
  uint64_t value = 0;      // another one after a change
  int64_t changed_ns = 0;  // Unix time of the last change of any of them
  NodeId node = {};        // of the directory, or of the one that has the file
  bool operator==(const Stamp&) const = default;
};

// What an entry of a directory is. Links count as what they lead to.
enum class EntryKind {
  kFile,
  kDirectory,
  kDangling,  // a symbolic link to nothing or to itself, or an entry that was removed during the listing
  kOther,     // FIFO, socket, device
};

struct DirectoryEntry {
  std::string_view name;  // raw bytes without a slash; valid during the visit only
  EntryKind kind;
};

// Purpose: a path in a storage, and access to everything at and below it. The path need not exist.
// Threads: immutable; all methods from any thread; each may block for as long as the storage takes.
// Errors name the path.
class Location {
 public:
  using Visit = std::function<Status(const DirectoryEntry&)>;
  // Returns whether the caller knows the entries of this version of a directory.
  using Recall = std::function<bool(const NodeVersion&)>;
  struct Listing {
    NodeId id;
    bool recalled = false;  // `recall` returned true, and nothing was visited
    bool changed = false;   // while it was listed, so that entries may be missing
    // There are links, or entries that may be: what these lead to may change without the directory.
    bool may_have_links = false;
    // When the listing began. Empty: the storage has no versions.
    std::optional<NodeVersion> version = std::nullopt;
  };

  static constexpr size_t kMaxStamped = 4096;

  Location() = default;
  virtual ~Location() = default;

  virtual const std::string& path() const = 0;  // absolute path or URI, raw bytes
  // Reads may take long, so no decoding thread may make them.
  virtual bool remote() const { return false; }

  // In the following methods `below` is relative to path() and has no leading slash; empty means path()
  // itself.

  // kInvalidArgument if it is not a regular file.
  virtual Result<std::unique_ptr<const RandomAccessFile>> OpenFile(std::string_view below) const = 0;
  // Calls `visit` for each entry of a directory except "." and "..", in any order. Stops at the first error,
  // including one that `visit` returns. Visits nothing if there is a `recall` that returns true.
  virtual Result<Listing> List(std::string_view below, const Visit& visit, const Recall& recall) const = 0;
  // The same without `recall`. Returns the directory's id.
  Result<NodeId> List(std::string_view below, const Visit& visit) const;
  virtual Result<NodeKind> Kind(std::string_view below) const = 0;  // links are followed
  // The stamp of a file or directory. In a directory of more than kMaxStamped entries it may only change when
  // entries are added, removed or renamed.
  virtual Result<Stamp> StampOf(std::string_view below) const = 0;

  // Returns the directory that contains path(). kPermissionDenied if it lies outside the allowed roots.
  virtual Result<std::shared_ptr<const Location>> Parent() const = 0;

  // path() and `below`, joined by a slash.
  std::string FullPath(std::string_view below) const;

 protected:
  Location(const Location&) = default;
  Location(Location&&) = default;
  Location& operator=(const Location&) = default;
  Location& operator=(Location&&) = default;
};

// When the links in a location's own path are followed. Once: one that leads elsewhere later changes nothing.
// Of a file, only those of its directory.
enum class PathLinks { kFollowedAtEachUse, kFollowedOnce };

// Returns the location of `uri`, which must be an absolute path below one of `allowed_roots` (see LocalPath).
Result<std::shared_ptr<const Location>> ResolveLocation(std::string_view uri,
                                                        const std::vector<std::string>& allowed_roots,
                                                        PathLinks links = PathLinks::kFollowedAtEachUse);

// Returns "a/b" for "a" and "b", or "b" if `directory` is empty.
std::string JoinPath(std::string_view directory, std::string_view name);

}  // namespace pinfeed
