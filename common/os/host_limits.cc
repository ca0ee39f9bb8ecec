// SPDX-License-Identifier: Apache-2.0
// Sources of the file formats: proc_meminfo(5), cgroups(7), and the kernel's admin-guide/cgroup-v2
// (memory.max, memory.current, memory.stat, cpu.max) and cgroup-v1 (memory.limit_in_bytes, total_* of
// memory.stat, cpu.cfs_quota_us).
#include "common/os/host_limits.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "common/base/parse_number.h"

namespace pinfeed {
namespace {

constexpr const char* kCgroupRoot = "/sys/fs/cgroup";

// Empty for "max", "-1", a missing file, or anything else that is not a number.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return ParseNumber<uint64_t>(word);
}

// The directories of this process's control groups and their ancestors, for v2 (`controller` empty) or a v1
// controller. In a container, the mount's root often is the process's own group while /proc shows the host's
// path. The mount's root is therefore always included.
std::vector<std::string> GroupDirectories(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::vector<std::string> directories;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    bool ours = controller.empty() && second == first + 1;
    for (std::string name; !controller.empty() && std::getline(controllers, name, ',');)
      ours = ours || name == controller;
    if (!ours) continue;
    const std::string mount = root + kCgroupRoot + (controller.empty() ? "" : "/" + controller);
    std::string path = line.substr(second + 1);
    while (path.size() > 1) {
      directories.push_back(mount + path);
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
    directories.push_back(mount);
  }
  return directories;
}

// The part of a group's memory usage that is page cache. Shared memory is not included.
uint64_t CachedBytes(const std::string& stat_file, const std::string& prefix) {
  std::ifstream file(stat_file);
  uint64_t sum = 0;
  std::string key;
  for (uint64_t bytes = 0; file >> key >> bytes;) {
    if (key == prefix + "active_file" || key == prefix + "inactive_file") sum += bytes;
  }
  return sum;
}

// The file names of one cgroup version.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* cached_prefix;
};

void Tighten(HostMemory& memory, const std::string& group, const GroupFiles& files, uint64_t enough_bytes) {
  const std::string limit_file = group + "/" + files.limit;
  const std::optional<uint64_t> limit = ReadNumber(limit_file);
  if (!limit) return;
  if (*limit < memory.limit_bytes) {
    memory.limit_bytes = *limit;
    memory.limited_by = limit_file;
  }
  uint64_t used = std::min(*limit, ReadNumber(group + "/" + files.used).value_or(0));
  if (*limit - used < std::min(enough_bytes, memory.available_bytes))
    used -= std::min(used, CachedBytes(group + "/memory.stat", files.cached_prefix));
  if (*limit - used < memory.available_bytes) {
    memory.available_bytes = *limit - used;
    memory.available_by = limit_file;
  }
}

}  // namespace

Result<HostMemory> ReadHostMemory(const std::string& root, uint64_t enough_bytes) {
  const std::string path = root + "/proc/meminfo";
  errno = 0;
  std::ifstream file(path);
  if (!file) return ErrnoStatus("open " + path, errno);
  HostMemory memory;
  memory.limited_by = memory.available_by = "physical memory";
  std::string key;
  uint64_t kib = 0;
  for (std::string line; std::getline(file, line);) {
    if (!(std::istringstream(line) >> key >> kib)) continue;
    if (key == "MemTotal:") memory.limit_bytes = kib * 1024;
    if (key == "MemAvailable:") memory.available_bytes = kib * 1024;
  }
  if (memory.limit_bytes == 0 || memory.available_bytes == 0)
    return Internal("read " + path + ": MemTotal or MemAvailable is missing");
  for (const std::string& group : GroupDirectories(root, ""))
    Tighten(memory, group, {"memory.max", "memory.current", ""}, enough_bytes);
  for (const std::string& group : GroupDirectories(root, "memory"))
    Tighten(memory, group, {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"}, enough_bytes);
  return memory;
}

uint32_t UsableCpus(uint32_t affinity, const std::string& root) {
  double cpus = std::max<uint32_t>(affinity, 1);
  for (const std::string& group : GroupDirectories(root, "")) {
    std::ifstream file(group + "/cpu.max");  // "max 100000" or "150000 100000"
    double quota = 0;
    double period = 0;
    if (file >> quota >> period && quota > 0 && period > 0) cpus = std::min(cpus, quota / period);
  }
  for (const std::string& group : GroupDirectories(root, "cpu")) {
    const std::optional<uint64_t> quota = ReadNumber(group + "/cpu.cfs_quota_us");
    const std::optional<uint64_t> period = ReadNumber(group + "/cpu.cfs_period_us");
    if (quota && period && *quota > 0 && *period > 0)
      cpus = std::min(cpus, static_cast<double>(*quota) / static_cast<double>(*period));
  }
  return std::max<uint32_t>(1, static_cast<uint32_t>(std::ceil(cpus)));
}

uint32_t AffinityCpus() {
  // Hosts with more than CPU_SETSIZE (1024) CPUs need a longer mask. The call fails with EINVAL until it is
  // long enough.
  for (int cpus = CPU_SETSIZE; cpus <= (1 << 20); cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpus));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return static_cast<uint32_t>(count);
  }
  return 1;
}

}  // namespace pinfeed
