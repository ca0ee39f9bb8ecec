// SPDX-License-Identifier: Apache-2.0
// Which processes have a GPU in use. In: NVML (libnvidia-ml.so.1), loaded at run time. Out: their numbers, as
// this process sees them.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace pinfeed {

// Purpose: asks the driver who computes on a GPU. A process stays on the list until its last work there is
// over, also when it has ended and a forked child keeps its GPU open: so "no longer listed" proves what the
// end of the process does not. Owns: NVML's initialisation. Threads: any. Errors: of Load when there is no
// NVML; of On when it cannot tell. Invariant: numbers are of this process's PID namespace; processes of
// others may be missing, so only one that was listed can be said to have gone.
class GpuProcesses {
 public:
  static Result<std::unique_ptr<const GpuProcesses>> Load();
  ~GpuProcesses();
  GpuProcesses(const GpuProcesses&) = delete;
  GpuProcesses& operator=(const GpuProcesses&) = delete;

  Result<std::vector<pid_t>> On(const std::string& gpu_uuid) const;

 private:
  struct Nvml;
  explicit GpuProcesses(std::unique_ptr<const Nvml> nvml);
  const std::unique_ptr<const Nvml> nvml_;
};

}  // namespace pinfeed
