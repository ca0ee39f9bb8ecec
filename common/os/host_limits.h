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

// `root` prefixes every path; tests use a directory with made-up files. A group's page cache is read only if
// fewer than `enough_bytes` are available without it, because reading it costs more than the rest.
Result<HostMemory> ReadHostMemory(const std::string& root = {}, uint64_t enough_bytes = UINT64_MAX);

// The number of CPUs allowed by `affinity` (the CPUs this process may run on) and the quotas of the control
// groups; at least 1. A fraction of a CPU counts as one.
uint32_t UsableCpus(uint32_t affinity, const std::string& root = {});
// The number of CPUs from sched_getaffinity(2).
uint32_t AffinityCpus();

}  // namespace pinfeed
