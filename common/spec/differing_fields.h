// SPDX-License-Identifier: Apache-2.0
// Names what keeps two feeds from being one. In: two specs. Out: part of an error message.
#pragma once

#include <string>

#include "common/spec/feed_spec.h"

namespace pinfeed {

// The fields in which two specs differ, with both values where they are short, as
// "batch_size (3 there, 4 here), transforms"; empty when they are equal. `there`: the spec of others.
std::string DifferingFields(const FeedSpec& there, const FeedSpec& here);

}  // namespace pinfeed
