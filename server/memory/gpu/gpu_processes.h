// SPDX-License-Identifier: Apache-2.0
// The processes that use a GPU. In: NVML (libnvidia-ml.so.1), loaded at run time. Out: their pids, as this
// process sees them.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace pinfeed {

// Purpose: lists the processes that compute on a GPU. A process stays listed until its last work there has
// completed, even after it has exited and only a forked child keeps the GPU open. Its absence therefore
// proves more than its exit.
// Owns: NVML's initialisation. Threads: any.
// Errors: Load fails without NVML; On fails when NVML cannot list the processes.
// Invariant: pids are in this process's PID namespace. Foreign processes may be missing, so only a process
// that was listed before can be said to have left.
class GpuProcesses {
 public:
  static Result<std::unique_ptr<const GpuProcesses>> Load();
  ~GpuProcesses();

  Result<std::vector<pid_t>> On(const std::string& gpu_uuid) const;

 private:
  struct Nvml;
  explicit GpuProcesses(std::unique_ptr<const Nvml> nvml);
  const std::unique_ptr<const Nvml> nvml_;
};

}  // namespace pinfeed
