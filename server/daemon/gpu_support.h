// SPDX-License-Identifier: Apache-2.0
// Where batches will lie: in host memory, or on the GPUs of this machine too. In: the configuration. Out: the
// GPUs, opened, or why there are none.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "server/config/config.h"
#include "server/memory/device_arenas.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

struct GpuSupport {
  std::unique_ptr<DeviceArenas> devices;  // null: host memory only
  std::string backend;                    // for status: "cuda", or "host" with the reason
};

// Errors: of gpus = on when there is no GPU; under auto only those of a GPU that is there but cannot be used
// as configured. `on_failure` is called from another thread when a GPU breaks later; `on_progress` from
// several while host memory is pinned (see DeviceOptions).
Result<GpuSupport> OpenGpus(const Config& config, MemoryBudget& pool,
                            std::function<void(const Status&)> on_failure,
                            std::function<void(uint64_t bytes, uint64_t total)> on_progress);

}  // namespace pinfeed
