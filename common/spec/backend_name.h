// SPDX-License-Identifier: Apache-2.0
// Backends by the names that people use.
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

}  // namespace pinfeed
