// SPDX-License-Identifier: Apache-2.0
// Converts a Status to gRPC's. The codes are the same.
#pragma once

#include <grpcpp/support/status.h>

#include "common/base/status.h"

namespace pinfeed {

grpc::Status ToGrpc(const Status& status);

}  // namespace pinfeed
