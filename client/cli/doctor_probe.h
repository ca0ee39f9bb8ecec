// SPDX-License-Identifier: Apache-2.0
// Whether another process can map a piece of this one's device memory, found out with one. In: a GPU. Out:
// yes, or the reason why not, of either process.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/cuda/device.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

// vmm-fd: a descriptor of memory made by cuMemCreate, mapped read-only over there. cuda-ipc: a handle of
// memory made by cuMemAlloc.
Status ProbeWithProcess(const std::shared_ptr<const CudaDevice>& device, Backend backend);

}  // namespace pinfeed
