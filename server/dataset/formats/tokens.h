// SPDX-License-Identifier: Apache-2.0
// The format "tokens": one long stream of token ids. In: a flat file (no header, little-endian) or a 1-D .npy
// of uint16 or uint32. Out: fields "x" and "y", int64 [sequence_length], y one token ahead of x.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/spec/tensor_spec.h"
#include "server/dataset/dataset.h"
#include "server/storage/storage.h"

namespace pinfeed {

struct TokenOptions {
  uint64_t sequence_length = 0;               // >= 1
  uint64_t stride = 0;                        // 0: sequence_length
  std::optional<DType> dtype = std::nullopt;  // of a file without header; unset: kUint16
};

// Sample i starts at token i * stride and spans sequence_length + 1 tokens, so there are
// floor((tokens - (sequence_length + 1)) / stride) + 1. A file whose name ends in .npy tells its own element
// type. `user_path` is what DatasetInfo::path will say.
Result<std::shared_ptr<const Dataset>> OpenTokens(const Location& base, std::string user_path,
                                                  const TokenOptions& options);

}  // namespace pinfeed
