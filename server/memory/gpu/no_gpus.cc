// SPDX-License-Identifier: Apache-2.0
// Replaces gpus.cc when the CUDA headers are missing at build time.
#include "server/memory/device_arenas.h"
#include "server/memory/memory_budget.h"

namespace pinfeed {

Result<std::unique_ptr<DeviceArenas>> MakeDeviceArenas(const DeviceOptions& /*options*/,
                                                       MemoryBudget& /*pool*/) {
  return Unavailable("this pinfeedd was built without CUDA");
}

}  // namespace pinfeed
