// SPDX-License-Identifier: Apache-2.0
// What the ceilings that read share: one sample of a file of samples of one size.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace pinfeed {

struct SampleFile {
  std::string path;
  uint64_t offset = 0;  // of the first sample in the file
  uint64_t sample_bytes = 0;
  uint64_t samples = 0;
};

// `fd` is the file, opened for reading. kDataLoss when it is too short.
inline Status ReadSample(int fd, const SampleFile& file, uint64_t sample, std::byte* out) {
  for (uint64_t done = 0; done < file.sample_bytes;) {
    const ssize_t got = pread(fd, out + done, file.sample_bytes - done,
                              static_cast<off_t>(file.offset + sample * file.sample_bytes + done));
    if (got < 0) return ErrnoStatus("read " + file.path, errno);
    if (got == 0) return DataLoss("read " + file.path + ": it ends before sample " + std::to_string(sample));
    done += static_cast<uint64_t>(got);
  }
  return OkStatus();
}

}  // namespace pinfeed
