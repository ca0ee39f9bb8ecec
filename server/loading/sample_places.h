// SPDX-License-Identifier: Apache-2.0
// Where the tensors of one sample are written: in the memory of its piece.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/spec/tensor_spec.h"

namespace pinfeed {

// Purpose: the places of one sample of a piece, and then of the next. A sample's rows of a packed tensor get
// the next free place of the piece, so no sample waits for another. Borrows: the memory, the layout and the
// counters, all of the piece. Threads: one each; several may write samples of one piece. Errors: by Pack.
class SamplePlaces {
 public:
  SamplePlaces() = default;
  // One span a tensor, of which none is packed.
  SamplePlaces(std::vector<std::span<std::byte>> tensors) : tensors_(std::move(tensors)) {}
  // `tensors`: for a packed tensor the memory of the whole piece, else that of the sample. `first_sample`:
  // the piece's first, by its index in the batch. `packed_rows`: one a tensor, those that the piece has so
  // far; empty when no tensor is packed.
  SamplePlaces(std::vector<std::span<std::byte>> tensors, const BatchLayout& layout, uint32_t first_sample,
               std::span<std::atomic<uint64_t>> packed_rows)
      : tensors_(std::move(tensors)),
        layout_(&layout),
        first_sample_(first_sample),
        packed_rows_(packed_rows) {}

  size_t size() const { return tensors_.size(); }
  // The sample's memory of a tensor that is not packed; whose size is the tensor's SampleBytes.
  const std::span<std::byte>& operator[](size_t tensor) const { return tensors_[tensor]; }
  // Of the first `count` tensors. Precondition: none of them is packed.
  std::span<const std::span<std::byte>> First(size_t count) const { return std::span(tensors_).first(count); }

  // Writes the sample's rows of a packed tensor, and their extent. At most once a sample and tensor.
  // kResourceExhausted when the piece has no memory for them. Precondition: whole rows.
  Status Pack(size_t tensor, std::span<const std::byte> rows) const;
  // All zeros, and no rows.
  void WriteZeros() const;

  // Goes on to the next sample.
  void Next();

 private:
  bool IsPacked(size_t tensor) const {
    return !packed_rows_.empty() && layout_->tensors[tensor].spec.packed();
  }

  std::vector<std::span<std::byte>> tensors_;
  const BatchLayout* layout_ = nullptr;
  uint32_t first_sample_ = 0;
  std::span<std::atomic<uint64_t>> packed_rows_;
};

}  // namespace pinfeed
