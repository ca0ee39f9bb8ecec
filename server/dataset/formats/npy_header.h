// SPDX-License-Identifier: Apache-2.0
// The header of a .npy file. In: the first bytes of a file. Out: element type, shape and the offset of the
// elements, all checked. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html,
// versions 1.0, 2.0 and 3.0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/spec/tensor_spec.h"
#include "server/storage/storage.h"

namespace pinfeed {

inline constexpr uint64_t kMaxNpyHeaderBytes = uint64_t{1}
                                               << 20;  // of the dictionary; numpy's own default is 10,000
inline constexpr size_t kMaxNpyRank = 64;              // the limit of numpy 2
inline constexpr size_t kMaxSampleDims =
    15;  // clients support 16 (PF_MAX_DIMS), including the batch dimension

struct NpyHeader {
  DType dtype = DType::kUnspecified;
  bool big_endian = false;
  bool fortran_order = false;  // never for rank 1, where both orders are the same
  std::vector<int64_t> shape;  // including the first dimension; all >= 1
  uint64_t data_offset = 0;    // of the first element in the file
  uint64_t data_bytes = 0;     // of all elements
  bool operator==(const NpyHeader&) const = default;
};

// `start` holds the first bytes of the file, at least the whole header; the rest is ignored.
// kInvalidArgument: not a .npy file, or one that cannot be batched (objects, records, text, dates, an empty
// dimension).
Result<NpyHeader> ParseNpyHeader(std::span<const std::byte> start);

// Whether `file` starts as a .npy file does, whatever its name.
Result<bool> StartsAsNpy(const RandomAccessFile& file);

// Reads and parses the header of `file`. kDataLoss, with both numbers, if the size of the file is not exactly
// what the header implies.
Result<NpyHeader> ReadNpyHeader(const RandomAccessFile& file);

}  // namespace pinfeed
