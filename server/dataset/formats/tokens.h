// SPDX-License-Identifier: Apache-2.0
// The format "tokens": one long stream of token ids. In: a flat file (no header, little-endian) or a 1-D .npy
// of uint16 or uint32. Out: fields "x" and "y", int64 [sequence_length], y one token ahead of x.
#pragma once

#include <memory>

#include "common/spec/feed_spec.h"
#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

// Sample i starts at token i * stride (stride 0: sequence_length) and spans sequence_length + 1 tokens, so
// there are floor((tokens - (sequence_length + 1)) / stride) + 1. `spec` gives sequence_length, stride, the
// element type of a flat file and the path as the user named it; a file whose name ends in .npy tells its own
// element type.
Result<std::shared_ptr<const Dataset>> OpenTokens(const Location& base, const DatasetSpec& spec);

}  // namespace pinfeed
