// SPDX-License-Identifier: Apache-2.0
// What is wrong with the values of a spec, whatever dataset it is for. In: a FeedSpec that somebody gave.
// Out: every fault, led by its field. What needs the dataset (how many channels, how many samples) is asked
// by who has it, of specs without a fault here.
#pragma once

#include <cstddef>
#include <string>

#include "common/base/faults.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

inline constexpr size_t kMaxGroupBytes = 128;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxNamedFields = 256;  // in a list of a spec

// All but the transforms, which TransformChain::Parse checks, and the dataset's options
// (CheckDatasetOptions).
void CheckFeedSpec(const FeedSpec& spec, Faults& faults);

// Text for people: at most `limit` bytes, without control characters, which would let a client forge log
// lines and terminal sequences.
void CheckText(const std::string& text, size_t limit, const std::string& field, Faults& faults);

}  // namespace pinfeed
