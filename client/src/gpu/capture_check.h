// SPDX-License-Identifier: Apache-2.0
// Refuses to work on streams that are being captured.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/cuda/stream.h"

namespace pinfeed {

// kFailedPrecondition if the stream is being captured: a graph that took part in it would read the same
// memory again at each launch, which has another batch by then. `what`: was asked for. Precondition: the
// device's context is current.
inline Status CheckNotCapturing(const CudaDevice& device, CUstream stream, const char* what) {
  ASSIGN_OR_RETURN(const bool capturing, IsCapturing(device, stream));
  if (!capturing) return OkStatus();
  return FailedPrecondition(std::string(what) + " on a stream of GPU " + device.uuid() +
                            ": the stream is being captured, and each launch of the graph would read memory "
                            "that has another batch by then; take batches outside of the capture, and copy "
                            "them to the graph's inputs");
}

}  // namespace pinfeed
