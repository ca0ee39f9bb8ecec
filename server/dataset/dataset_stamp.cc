// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/dataset_stamp.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <string_view>

#include "common/base/quote.h"

namespace pinfeed {
namespace {

// Directories with more entries than this are stamped by themselves alone: adding and removing entries still
// shows.
constexpr size_t kMaxStampedEntries = 4096;
constexpr uint64_t kStart = 0xcbf29ce484222325ULL;

struct DirectoryTraits {
  using Handle = DIR*;
  static constexpr DIR* Null() { return nullptr; }
  static void Close(DIR* directory) noexcept { ::closedir(directory); }
};

void Mix(uint64_t value, uint64_t& hash) {  // FNV-1a over 64-bit words: tells stamps apart, nothing more
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

// What a link leads to, as it is followed when the dataset is read. One that leads nowhere, or out of the
// roots, is no file of the dataset's.
void MixTarget(const LocalPath& base, std::string_view link, uint64_t& hash) {
  struct stat target {};
  const Result<UniqueFd> node = base.OpenNode(link);
  if (node.ok() && ::fstat(node->get(), &target) == 0) MixStat(target, hash);
}

}  // namespace

Result<uint64_t> StampOf(const LocalPath& base) {
  ASSIGN_OR_RETURN(const UniqueFd node, base.OpenNode(""));
  struct stat info {};
  if (::fstat(node.get(), &info) != 0) return ErrnoStatus("stat " + QuotePath(base.path()), errno);
  uint64_t hash = kStart;
  MixStat(info, hash);
  if (!S_ISDIR(info.st_mode)) return hash;
  ASSIGN_OR_RETURN(UniqueFd fd, base.OpenDirectory(""));
  const UniqueHandle<DirectoryTraits> directory(::fdopendir(fd.get()));
  if (!directory) return ErrnoStatus("list " + QuotePath(base.path()), errno);
  static_cast<void>(fd.release());  // closedir closes it
  uint64_t entries = 0;
  size_t count = 0;
  while (const dirent* entry =
             ::readdir(directory.get())) {  // NOLINT(concurrency-mt-unsafe): this stream is this thread's own
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (++count > kMaxStampedEntries) return hash;
    struct stat below {};
    constexpr int kAsItIs = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;
    if (::fstatat(::dirfd(directory.get()), entry->d_name, &below, kAsItIs) != 0) continue;
    uint64_t one = kStart;
    MixStat(below, one);
    if (S_ISLNK(below.st_mode)) MixTarget(base, name, one);
    entries += one;  // readdir has no order
  }
  Mix(entries, hash);
  return hash;
}

}  // namespace pinfeed
