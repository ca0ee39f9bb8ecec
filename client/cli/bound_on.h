// SPDX-License-Identifier: Apache-2.0
// Describes what a feed or a session is bound on. In: feeds and sessions of pinfeed.v1.GetStatusResponse as
// JSON. Out: a table cell.
#pragma once

#include <string>

#include "client/cli/json_field.h"

namespace pinfeed {

// Whether models answer what the feed gives.
bool IsBatcher(const Json& feed);
// Whether the feed is a batcher that has no request.
bool AwaitsRequests(const Json& feed);
// Returns a sentence about the recent past, or about the whole run if the daemon reports no recent figures.
std::string FeedBoundOn(const Json& feed);
// Returns what helps a feed whose trainers, or model, wait for data much of the time; empty: nothing needs
// to. `has_cache`: whether the daemon has a cache of decoded images.
std::string FeedRemedy(const Json& feed, bool has_cache);
// Returns which producer of the feed has been at its batch longest, and for how long; empty: none for long.
std::string SlowestProducer(const Json& feed);
// Returns what the disk read ahead of the feed's workers; empty: the page cache had everything so far.
std::string FeedReadAhead(const Json& feed);
// Returns a few words about the recent past: "trainer 90%", "read 40%", "-" for nothing. `feed` is the
// session's feed.
std::string SessionBoundOn(const Json& session, const Json& feed);

}  // namespace pinfeed
