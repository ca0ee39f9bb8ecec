// SPDX-License-Identifier: Apache-2.0
// What a feed or a session is bound on, in words. In: feeds and sessions of pinfeed.v1.GetStatusResponse as
// JSON. Out: a cell of a table.
#pragma once

#include <string>

#include "client/cli/json_field.h"

namespace pinfeed {

// A sentence about the recent past; about the whole run for a daemon that tells no more.
std::string FeedBoundOn(const Json& feed);
// A few words about the recent past: "trainer 90%", "read 40%", "-" for nothing. `feed` is the session's.
std::string SessionBoundOn(const Json& session, const Json& feed);

}  // namespace pinfeed
