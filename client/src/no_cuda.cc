// SPDX-License-Identifier: Apache-2.0
// Replaces cuda_slots.cc and the like in builds without the CUDA headers or nvcc.
#include "client/copies/device_copier.h"
#include "client/src/decode/decode_engine.h"
#include "client/src/gpu/device_slots.h"
#include "client/src/gpu/host_pins.h"
#include "client/src/gpu/resident_samples.h"

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

Result<std::unique_ptr<ResidentSamples>> MapResidentSamples(const FeedOffer& /*offer*/, int /*ordinal*/,
                                                            UniqueFd /*fd*/) {
  return WithoutCuda();
}

Result<std::shared_ptr<const void>> PageLock(int /*ordinal*/, std::byte* /*address*/, uint64_t /*bytes*/) {
  return WithoutCuda();
}

Result<std::shared_ptr<DecodeEngine>> OpenDecodeEngine(int /*ordinal*/) {
  return WithoutCuda();
}

Result<std::unique_ptr<DeviceCopier>> MakeDeviceCopier(int /*ordinal*/,
                                                       const DeviceCopier::Options& /*options*/) {
  return WithoutCuda();
}

Result<std::string> GpuUuid(int /*ordinal*/) {
  return WithoutCuda();
}

Result<std::shared_ptr<const void>> HoldGpu(int /*ordinal*/) {
  return WithoutCuda();
}

}  // namespace pinfeed
