// SPDX-License-Identifier: Apache-2.0
// Reads the daemon's answer to OpenFeed. In: the message, of which nothing is believed. Out: a checked offer.
#pragma once

#include "client/src/link/offer.h"
#include "common/base/result.h"
#include "pinfeed/v1/feeder.pb.h"

namespace pinfeed {

// Returns the offer after CheckOffer, or only FeedOffer::end_first if that is set. kInternal: the message is
// no usable offer.
Result<FeedOffer> OfferOf(const v1::OpenFeedResponse& response);

}  // namespace pinfeed
