// SPDX-License-Identifier: Apache-2.0
// The names that people use for backends, for ways of sharing and for decoders.
#pragma once

#include <string>

#include "common/spec/feed_spec.h"

namespace pinfeed {

// "auto", "host", "cuda-ipc", "vmm-fd". Static lifetime.
constexpr const char* BackendName(Backend backend) {
  switch (backend) {
    case Backend::kAuto:
      return "auto";
    case Backend::kHost:
      return "host";
    case Backend::kCudaIpc:
      return "cuda-ipc";
    case Backend::kVmmFd:
      return "vmm-fd";
  }
  return "unknown";
}

// "exclusive", "broadcast", "queue". Static lifetime.
constexpr const char* SharingName(Sharing sharing) {
  switch (sharing) {
    case Sharing::kExclusive:
      return "exclusive";
    case Sharing::kBroadcast:
      return "broadcast";
    case Sharing::kQueue:
      return "queue";
  }
  return "unknown";
}

// "off", "on", "auto". Static lifetime.
constexpr const char* ResidentName(Resident resident) {
  switch (resident) {
    case Resident::kOff:
      return "off";
    case Resident::kOn:
      return "on";
    case Resident::kAuto:
      return "auto";
  }
  return "unknown";
}

// "cpu", "gpu", "auto". Static lifetime.
constexpr const char* DecodeName(Decode decode) {
  switch (decode) {
    case Decode::kCpu:
      return "cpu";
    case Decode::kGpu:
      return "gpu";
    case Decode::kAuto:
      return "auto";
  }
  return "unknown";
}

// "cpu", "gpu" or, with the share of the GPU, "auto:787".
inline std::string DecodeText(Decode decode, uint32_t gpu_share) {
  return DecodeName(decode) + (decode == Decode::kAuto ? ":" + std::to_string(gpu_share) : std::string());
}

}  // namespace pinfeed
