// SPDX-License-Identifier: Apache-2.0
// The format "tokens": a stream of token ids. In: a headerless little-endian file, or a 1-D .npy file, of
// uint16 or uint32. Out: the fields "x" and "y", int64 [sequence_length]; y is one token ahead of x.
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
  std::optional<DType> dtype = std::nullopt;  // of a headerless file; unset: kUint16
};

// Sample i starts at token i * stride and spans sequence_length + 1 tokens, so the number of samples is
// floor((tokens - (sequence_length + 1)) / stride) + 1. The header of a .npy file states its element type.
// `user_path` becomes DatasetInfo::path.
Result<std::shared_ptr<const Dataset>> OpenTokens(const Location& base, std::string user_path,
                                                  const TokenOptions& options);

}  // namespace pinfeed
