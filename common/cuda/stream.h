// SPDX-License-Identifier: Apache-2.0
// Owners for the driver's streams and events.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/cuda/device.h"

namespace pinfeed {

// An object of the driver with the GPU whose context must be current to destroy it.
template <typename Native>
struct OnDevice {
  const CudaDevice* device = nullptr;
  Native native = nullptr;
  bool operator==(const OnDevice&) const = default;
};

// kDestroy fails only if the context is broken. That of a stream does not wait: queued work still runs.
template <typename Native, CUresult (*CudaDriver::*kDestroy)(Native)>
struct OnDeviceTraits {
  using Handle = OnDevice<Native>;
  static constexpr Handle Null() { return {}; }
  static void Close(Handle object) noexcept {
    const auto scope = object.device->Enter();
    (void)(object.device->driver().*kDestroy)(object.native);
  }
};

// Both borrow the device, which outlives them.
using UniqueCudaStream = UniqueHandle<OnDeviceTraits<CUstream, &CudaDriver::cuStreamDestroy>>;
using UniqueCudaEvent = UniqueHandle<OnDeviceTraits<CUevent, &CudaDriver::cuEventDestroy>>;

// Create a stream, which does not wait for the default one; a stream whose work goes before that of streams
// with another priority; an event. `what`: for the error. Precondition: the device's context is current.
Result<UniqueCudaStream> CreateStream(const CudaDevice& device, const std::string& what);
Result<UniqueCudaStream> CreateUrgentStream(const CudaDevice& device, const std::string& what);
Result<UniqueCudaEvent> CreateEvent(const CudaDevice& device, const std::string& what,
                                    unsigned int flags = CU_EVENT_DISABLE_TIMING);

// Copies device memory to `out` on a stream of its own: it waits for no other work, and no capture forbids
// it. Precondition: the device's context is current.
Status ReadDeviceMemory(const CudaDevice& device, CUdeviceptr from, std::span<std::byte> out,
                        const std::string& what);

// Whether what is queued on the stream is not executed, but becomes part of a graph. Precondition: the
// device's context is current.
Result<bool> IsCapturing(const CudaDevice& device, CUstream stream);

}  // namespace pinfeed
