// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "client/src/gpu/host_pins.h"
#include "common/cuda/device_memory.h"

namespace pinfeed {

Result<std::shared_ptr<const void>> PageLock(int ordinal, std::byte* address, uint64_t bytes) {
  ASSIGN_OR_RETURN(std::shared_ptr<const CudaDevice> device, CudaDevice::Open(ordinal));
  ASSIGN_OR_RETURN(HostRegistration registration,
                   HostRegistration::Create(std::move(device), address, bytes));
  return std::make_shared<const HostRegistration>(std::move(registration));
}

}  // namespace pinfeed
