// SPDX-License-Identifier: Apache-2.0
// Owners for the driver's streams and events.
#pragma once

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

struct CudaStreamTraits {
  using Handle = OnDevice<CUstream>;
  static constexpr Handle Null() { return {}; }
  // Does not wait: queued work still runs. Fails only if the context is broken.
  static void Close(Handle stream) noexcept {
    const CudaScope scope(*stream.device);
    (void)stream.device->driver().cuStreamDestroy(stream.native);
  }
};

struct CudaEventTraits {
  using Handle = OnDevice<CUevent>;
  static constexpr Handle Null() { return {}; }
  // Fails only if the context is broken.
  static void Close(Handle event) noexcept {
    const CudaScope scope(*event.device);
    (void)event.device->driver().cuEventDestroy(event.native);
  }
};

// Purpose: within the scope, this thread's calls leave graphs alone that other threads capture. Otherwise a
// call that a capture does not allow, such as a wait, makes a capture in global mode invalid. Threads: the
// one that created it.
class RelaxedCaptureScope {
 public:
  // The call fails only for an invalid mode.
  explicit RelaxedCaptureScope(const CudaDriver& driver) : driver_(driver) {
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~RelaxedCaptureScope() { (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  const CudaDriver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the thread's mode before
};

// Both borrow the device, which outlives them.
using UniqueCudaStream = UniqueHandle<CudaStreamTraits>;
using UniqueCudaEvent = UniqueHandle<CudaEventTraits>;

}  // namespace pinfeed
