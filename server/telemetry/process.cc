// SPDX-License-Identifier: Apache-2.0
// What proc(5) tells about this process.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/telemetry/snapshot.h"

namespace pinfeed {

uint32_t CountOpenFds() {
  std::error_code error;
  uint32_t count = 0;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error))
    ++count;
  return count == 0 ? 0 : count - 1;  // without the one that lists them
}

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total_pages = 0;
  uint64_t resident_pages = 0;
  if (!(file >> total_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace pinfeed
