// SPDX-License-Identifier: Apache-2.0
// In place of cuda_slots.cc where the CUDA headers or nvcc were missing at build time.
#include "client/src/device_slots.h"

namespace pinfeed {
namespace {

Status WithoutCuda() {
  return Unavailable("this libpinfeed was built without CUDA");
}

}  // namespace

Result<std::unique_ptr<DeviceSlots>> MapDeviceSlots(const FeedOffer& /*offer*/, int /*ordinal*/,
                                                    UniqueFd /*fd*/, ReleasePage* /*release_page*/,
                                                    size_t /*release_page_bytes*/) {
  return WithoutCuda();
}

Result<std::string> GpuUuid(int /*ordinal*/) {
  return WithoutCuda();
}

Result<std::shared_ptr<const void>> HoldGpu(int /*ordinal*/) {
  return WithoutCuda();
}

}  // namespace pinfeed
