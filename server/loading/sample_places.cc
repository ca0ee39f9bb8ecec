// SPDX-License-Identifier: Apache-2.0
#include "server/loading/sample_places.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace pinfeed {

Status SamplePlaces::Pack(size_t tensor, std::span<const std::byte> rows) const {
  PF_CHECK(IsPacked(tensor), "rows are packed into a packed tensor");
  const TensorSpec& spec = layout_->tensors[tensor].spec;
  const uint64_t row_bytes = spec.RowBytes();
  const uint64_t count = rows.size() / row_bytes;
  const std::span<std::byte> memory = tensors_[tensor];
  const uint64_t capacity = memory.size() / row_bytes;
  const uint64_t first = packed_rows_[tensor].fetch_add(count, std::memory_order_relaxed);
  if (first > capacity || count > capacity - first) {
    return ResourceExhausted(
        "field '" + spec.name + "': " + std::to_string(count) +
        " rows do not fit behind those of the samples before; the batch has memory for " +
        std::to_string(spec.shape[0]) + " rows a sample");
  }
  std::copy(rows.begin(), rows.end(), memory.begin() + static_cast<std::ptrdiff_t>(first * row_bytes));
  const RowExtent extent{static_cast<int64_t>(first_sample_) * spec.shape[0] + static_cast<int64_t>(first),
                         static_cast<int64_t>(count)};
  std::memcpy(tensors_[*spec.extents].data(), &extent, sizeof extent);
  return OkStatus();
}

void SamplePlaces::WriteZeros() const {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (!IsPacked(t)) std::ranges::fill(tensors_[t], std::byte{0});
  }
}

void SamplePlaces::Next() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    std::span<std::byte>& place = tensors_[t];
    if (!IsPacked(t)) place = {place.data() + place.size(), place.size()};
  }
}

}  // namespace pinfeed
