// SPDX-License-Identifier: Apache-2.0
// Chooses where batches are stored: in host memory only, or also on this machine's GPUs. In: the
// configuration. Out: the opened GPUs, or the reason why there are none.
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

// With gpus = on, fails when there is no GPU. With auto, fails only for a GPU that exists but cannot be used
// as configured. `on_failure` is called from another thread when a GPU fails later. `on_progress` is called
// from several threads while host memory is pinned (see DeviceOptions).
Result<GpuSupport> OpenGpus(const Config& config, MemoryBudget& pool,
                            std::function<void(const Status&)> on_failure,
                            std::function<void(uint64_t bytes, uint64_t total)> on_progress);

}  // namespace pinfeed
