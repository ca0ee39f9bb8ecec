// SPDX-License-Identifier: Apache-2.0
// What the host and its control groups allow this process: memory and CPUs. In: /proc and /sys/fs/cgroup (v2,
// v1 or both). Out: the tightest limit, and where it stands.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace pinfeed {

struct HostMemory {
  uint64_t limit_bytes = 0;      // physical memory, or a control group's limit when that is less
  uint64_t available_bytes = 0;  // what can be had without swapping; cached files give way
  std::string limited_by;        // "physical memory", or the file that holds the limit
  std::string available_by;      // the same of what leaves so little available
};

// `root` is put before every path read: a directory with made-up files in a test, else empty. What a group's
// cached files take is looked up, which costs more than the rest, only where less than `enough_bytes` are
// free beside them.
Result<HostMemory> ReadHostMemory(const std::string& root = {}, uint64_t enough_bytes = UINT64_MAX);

// CPUs that `affinity` (the CPUs this process is allowed on) and the control groups' quotas allow; at
// least 1. A part of a CPU counts as one.
uint32_t UsableCpus(uint32_t affinity, const std::string& root = {});
// From sched_getaffinity(2).
uint32_t AffinityCpus();

}  // namespace pinfeed
