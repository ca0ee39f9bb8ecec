// SPDX-License-Identifier: Apache-2.0
// Tests whether another process can map this one's device memory, by starting such a process. In: a GPU. Out:
// success, or either process's error.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/cuda/device.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

// Backends: vmm-fd passes a descriptor of memory made by cuMemCreate, which the other process maps read-only.
// cuda-ipc passes a handle of memory made by cuMemAlloc.
Status ProbeWithProcess(const std::shared_ptr<const CudaDevice>& device, Backend backend);

}  // namespace pinfeed
