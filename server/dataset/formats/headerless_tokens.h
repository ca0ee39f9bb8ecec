// SPDX-License-Identifier: Apache-2.0
// Tells by its first bytes whether a file that says nothing of itself may hold token ids.
#pragma once

#include <optional>

#include "common/base/result.h"
#include "common/spec/tensor_spec.h"
#include "server/storage/storage.h"

namespace pinfeed {

// kInvalidArgument with advice if they are text, in another format, or integers of
// another width than `requested` (unset: kUint16). Other errors are those of reading.
Status CheckHeaderlessTokens(const RandomAccessFile& file, std::optional<DType> requested);

}  // namespace pinfeed
