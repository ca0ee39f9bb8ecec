// SPDX-License-Identifier: Apache-2.0
// Our errors on the wire. In: a Status. Out: gRPC's, whose codes are the same.
#pragma once

#include <grpcpp/support/status.h>

#include "common/base/status.h"

namespace pinfeed {

grpc::Status ToGrpc(const Status& status);

}  // namespace pinfeed
