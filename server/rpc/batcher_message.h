// SPDX-License-Identifier: Apache-2.0
// The message about the memory of a batcher's client or consumer.
#pragma once

#include "pinfeed/v1/feeder.pb.h"
#include "server/session/open_feed.h"

namespace pinfeed {

// Everything but the path and the token.
void DescribePlace(const BatcherPlace& place, v1::BatcherInvitation& out);

}  // namespace pinfeed
