// SPDX-License-Identifier: Apache-2.0
// Where a trainer wants the outputs of one batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pinfeed {

// Purpose: the trainer's memory for each output of an offer. Borrows both arrays.
struct OutputMemory {
  void* const* addresses = nullptr;
  // The rows that each packed output has room for; empty: for those of a whole batch. A daemon that changes
  // extents after they were read must not make the client write behind that.
  std::span<const uint64_t> max_rows;

  void* operator[](size_t output) const { return addresses[output]; }
  uint64_t MaxRows(size_t output, uint64_t of_whole_batch) const {
    return max_rows.empty() ? of_whole_batch : std::min(max_rows[output], of_whole_batch);
  }
};

}  // namespace pinfeed
