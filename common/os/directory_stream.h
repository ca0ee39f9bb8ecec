// SPDX-License-Identifier: Apache-2.0
// The owner type for readdir's streams.
#pragma once

#include <dirent.h>

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

}  // namespace pinfeed
