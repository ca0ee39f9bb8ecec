// SPDX-License-Identifier: Apache-2.0
// The header of a .npy file. In: the bytes a file starts with. Out: element type, shape and where the
// elements lie, all checked. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html,
// versions 1.0, 2.0 and 3.0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/spec/tensor_spec.h"
#include "server/storage/storage.h"

namespace pinfeed {

inline constexpr uint64_t kMaxNpyHeaderBytes =
    uint64_t{1} << 20;                     // of the dictionary; numpy itself stops at 10,000 by default
inline constexpr size_t kMaxNpyRank = 64;  // numpy 2's own limit

struct NpyHeader {
  DType dtype = DType::kUnspecified;
  bool big_endian = false;
  bool fortran_order = false;  // never for rank 1, where both orders are the same
  std::vector<int64_t> shape;  // with the first dimension; all >= 1
  uint64_t data_offset = 0;    // of the first element in the file
  uint64_t data_bytes = 0;     // of all elements
  bool operator==(const NpyHeader&) const = default;
};

// `start` holds the file's first bytes, at least the whole header; what follows it is not looked at.
// kInvalidArgument: no .npy file, or one that is not for batches (objects, records, text, dates, rank 0, an
// empty dimension).
Result<NpyHeader> ParseNpyHeader(std::span<const std::byte> start);

// Reads and parses the header of `file` and checks that its size is exactly what the header needs (kDataLoss
// with both numbers).
Result<NpyHeader> ReadNpyHeader(const RandomAccessFile& file);

}  // namespace pinfeed
