// SPDX-License-Identifier: Apache-2.0
// Describes a new session, or a place at a batcher, to its client.
#pragma once

#include <cstdint>
#include <string>

#include "pinfeed/v1/feeder.pb.h"
#include "server/session/open_feed.h"
#include "server/session/session.h"

namespace pinfeed {

// Sets all fields of the response.
void DescribeOffer(const Session& session, const std::string& lifeline_path, uint64_t server_epoch,
                   v1::OpenFeedResponse* response);
// Sets all but the path and the token.
void DescribePlace(const BatcherPlace& place, v1::BatcherInvitation& out);

}  // namespace pinfeed
