// SPDX-License-Identifier: Apache-2.0
// The names that people use for backends and for ways of sharing.
#pragma once

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

}  // namespace pinfeed
