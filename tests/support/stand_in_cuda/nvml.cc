// SPDX-License-Identifier: Apache-2.0
// A stand-in for NVML: the part that tells which processes have a GPU in use. In: the files that the stand-in
// driver keeps open with a context (MarkInUse), found below /proc. Out: the numbers of the processes that
// made the contexts: a dead one's, too, while a forked child keeps its file.
//
// Environment: PINFEED_STAND_IN_NVML=blind: no process is listed, as in a container that sees no other's.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "tests/support/stand_in_cuda/stand_in.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;

struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

// The pids in the names of such files, of all processes whose files may be seen.
std::set<unsigned> PidsOn(int physical) {
  namespace fs = std::filesystem;
  const std::string prefix =
      std::string("/memfd:") + pinfeed::stand_in::kInUsePrefix + std::to_string(physical) + "-";
  std::set<unsigned> pids;
  std::error_code gone;  // processes end meanwhile
  for (fs::directory_iterator process("/proc", gone), end; process != end; process.increment(gone)) {
    if (gone) break;
    const std::string name = process->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code hidden;
    for (fs::directory_iterator fd(process->path() / "fd", hidden); !hidden && fd != end;
         fd.increment(hidden)) {
      std::error_code closed;
      const std::string target = fs::read_symlink(fd->path(), closed);
      if (!closed && target.compare(0, prefix.size(), prefix) == 0)
        pids.insert(static_cast<unsigned>(std::strtoul(target.c_str() + prefix.size(), nullptr, 10)));
    }
  }
  return pids;
}

}  // namespace

#define PF_NVML_EXPORT extern "C" __attribute__((visibility("default")))

PF_NVML_EXPORT int nvmlInit_v2() {
  return kSuccess;
}
PF_NVML_EXPORT int nvmlShutdown() {
  return kSuccess;
}
PF_NVML_EXPORT const char* nvmlErrorString(int result) {
  return result == kSuccess ? "no error" : "an error of the stand-in";
}

// The last byte of a stand-in GPU's UUID is its number.
PF_NVML_EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (uuid == nullptr || device == nullptr) return kInvalidArgument;
  const std::string_view text(uuid);
  constexpr std::string_view kPrefix = "GPU-70696e66-6565-6420-7374-616e64696e";
  if (text.size() != kPrefix.size() + 2 || text.substr(0, kPrefix.size()) != kPrefix) return kNotFound;
  *device = pinfeed::stand_in::PointerTo(1 + std::strtoul(uuid + kPrefix.size(), nullptr, 16));
  return kSuccess;
}

PF_NVML_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count,
                                                           Process* processes) {
  if (device == nullptr || count == nullptr) return kInvalidArgument;
  const char* const mode = std::getenv("PINFEED_STAND_IN_NVML");
  std::set<unsigned> pids;
  if (mode == nullptr || std::strcmp(mode, "blind") != 0)
    pids = PidsOn(static_cast<int>(pinfeed::stand_in::AddressOf(device)) - 1);
  const unsigned room = *count;
  *count = static_cast<unsigned>(pids.size());
  if (pids.size() > room) return kInsufficientSize;
  for (const unsigned pid : pids) *processes++ = {pid, 0, 0, 0};
  return kSuccess;
}
