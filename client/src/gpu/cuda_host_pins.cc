// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "client/src/gpu/host_pins.h"
#include "common/cuda/device_memory.h"

namespace pinfeed {
namespace {

class CudaHostPins final : public HostPins {
 public:
  CudaHostPins(std::shared_ptr<const CudaDevice> device, uint32_t slot_count)
      : device_(std::move(device)), slots_(slot_count) {}

  Status Pin(uint32_t slot, std::byte* address, uint64_t bytes) override {
    if (slots_[slot].device_address() != 0) return OkStatus();
    ASSIGN_OR_RETURN(slots_[slot], HostRegistration::Create(device_, address, bytes));
    return OkStatus();
  }

 private:
  const std::shared_ptr<const CudaDevice> device_;
  std::vector<HostRegistration> slots_;
};

}  // namespace

Result<std::unique_ptr<HostPins>> MakeHostPins(int ordinal, uint32_t slot_count) {
  ASSIGN_OR_RETURN(std::shared_ptr<const CudaDevice> device, CudaDevice::Open(ordinal));
  return std::unique_ptr<HostPins>(std::make_unique<CudaHostPins>(std::move(device), slot_count));
}

}  // namespace pinfeed
