// SPDX-License-Identifier: Apache-2.0
// The entries of directories, by readdir(3).
#pragma once

#include <dirent.h>

#include <cerrno>
#include <string_view>

#include "common/base/unique_handle.h"

namespace pinfeed {

struct DirectoryStreamTraits {
  using Handle = DIR*;
  static constexpr Handle Null() { return nullptr; }
  static void Close(Handle handle) noexcept { ::closedir(handle); }
};
using UniqueDirectoryStream = UniqueHandle<DirectoryStreamTraits>;

// Returns a stream of the entries of an open directory, which it takes. Null, with errno, if it fails.
inline UniqueDirectoryStream ReadDirectory(UniqueFd directory) {
  UniqueDirectoryStream stream(::fdopendir(directory.get()));
  if (stream) static_cast<void>(directory.release());  // closedir closes it
  return stream;
}

// Returns the next entry, except "." and "..", valid until the next call. Null at the end, and, with errno,
// if it fails; errno is 0 at the end.
inline const dirent* NextEntry(const UniqueDirectoryStream& stream) {
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());  // NOLINT(concurrency-mt-unsafe): each has its own
    if (entry == nullptr) return nullptr;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") return entry;
  }
}

}  // namespace pinfeed
