// SPDX-License-Identifier: Apache-2.0
// The memory and CPUs that the host and its control groups allow this process. In: /proc and /sys/fs/cgroup
// (v2, v1 or both). Out: the tightest limit and its source.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace pinfeed {

struct HostMemory {
  uint64_t limit_bytes = 0;      // physical memory, or a control group's limit when that is less
  uint64_t available_bytes = 0;  // available without swapping; includes reclaimable page cache
  std::string limited_by;        // "physical memory", or the file that holds the limit
  std::string available_by;      // the source of available_bytes, in the same form
};

// `root` prefixes every path; tests use a directory with made-up files. Counting
// the reclaimable page cache of a control group is slow, and left out if the group has `enough_bytes` free.
Result<HostMemory> ReadHostMemory(const std::string& root = {}, uint64_t enough_bytes = UINT64_MAX);

// The number of CPUs allowed by `affinity` (the CPUs this process may run on) and the quotas of the control
// groups; at least 1. Fractions are rounded up.
uint32_t UsableCpus(uint32_t affinity, const std::string& root = {});
// The number of CPUs from sched_getaffinity(2).
uint32_t AffinityCpus();

}  // namespace pinfeed
