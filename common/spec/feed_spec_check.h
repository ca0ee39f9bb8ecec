// SPDX-License-Identifier: Apache-2.0
// Checks the values of a spec as far as that is possible without its dataset. In: an untrusted FeedSpec. Out:
// every fault, with its field. Checks that need the dataset (number of channels or samples) come later, and
// only for specs without a fault here.
#pragma once

#include <cstddef>
#include <string>

#include "common/base/faults.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

inline constexpr size_t kMaxGroupBytes = 128;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxNamedFields = 256;  // per list of names

// Checks everything except the transforms (TransformChain::Parse) and the dataset's options
// (CheckDatasetOptions).
void CheckFeedSpec(const FeedSpec& spec, Faults& faults);

// Checks a text for people. It has at most `limit` bytes, and no control characters, by which a client could
// forge log lines and terminal sequences.
void CheckText(const std::string& text, size_t limit, const std::string& field, Faults& faults);

}  // namespace pinfeed
