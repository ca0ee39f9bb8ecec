// SPDX-License-Identifier: Apache-2.0
// Names, element types and shapes of the tensors in a batch, and where each lies in a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace pinfeed {

// Values are the wire's (pinfeed.v1.DType) and the C ABI's (pf_dtype).
enum class DType : uint8_t {
  kUnspecified = 0,
  kBool = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kUint32 = 6,
  kInt32 = 7,
  kUint64 = 8,
  kInt64 = 9,
  kFloat16 = 10,
  kBfloat16 = 11,
  kFloat32 = 12,
  kFloat64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
};

// Bytes of one element; 0 for kUnspecified and values outside the enumeration.
size_t DTypeSize(DType dtype);
// "uint8", "bfloat16", ...; "unspecified" otherwise.
std::string_view DTypeName(DType dtype);
// kInvalidArgument naming the text when it is no dtype's name.
Result<DType> DTypeFromName(std::string_view name);

// a * b and a + b, or nothing when the true value does not fit 64 bits. Every size that comes from outside
// goes through these.
bool CheckedMul(uint64_t a, uint64_t b, uint64_t* out);
bool CheckedAdd(uint64_t a, uint64_t b, uint64_t* out);

// One tensor of one sample: `shape` without the batch dimension, C order, dense.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kUnspecified;
  std::vector<int64_t> shape;
  // Packed: the samples have different numbers of rows, which lie in any order, with gaps, in the memory of
  // the whole batch. This is the index of the tensor of each sample's RowExtent. shape[0] is then the number
  // of rows for which there is memory, per sample.
  std::optional<uint32_t> extents = std::nullopt;
  // Padded: a sample's rows lie at the start of its memory, and zeros behind them. This is the index of the
  // tensor of each sample's number of rows (int64).
  std::optional<uint32_t> lengths = std::nullopt;

  bool packed() const { return extents.has_value(); }
  // Elements times element size; kInvalidArgument for a negative dimension, an unknown dtype or a product
  // over 2^62.
  Result<uint64_t> SampleBytes() const;
  // Of a packed or padded tensor: the bytes of one row. Precondition: SampleBytes succeeds.
  uint64_t RowBytes() const;
  bool operator==(const TensorSpec&) const = default;
};

// Where the rows of one sample lie in a packed tensor, in rows from the tensor's first byte: an element of
// the tensor of extents (int64, shape [2]).
struct RowExtent {
  int64_t first = 0;
  int64_t count = 0;
};

// Where one tensor of a batch lies in a slot: sample i of the batch starts at offset + i * sample_bytes. A
// packed tensor has batch_size * sample_bytes bytes for the rows of all samples.
struct TensorPlace {
  TensorSpec spec;
  uint64_t offset = 0;        // bytes from the start of the slot; a multiple of kTensorAlignment
  uint64_t sample_bytes = 0;  // bytes of one sample
  bool operator==(const TensorPlace&) const = default;
};

// Tensors start on this boundary within a slot (what CUDA's own allocator gives); slots on a page, so that no
// two share one and small batches waste little. An arena whose memory comes in larger pieces rounds its
// whole, not each slot.
inline constexpr uint64_t kTensorAlignment = 512;
inline constexpr uint64_t kSlotAlignment = 4096;

// Purpose: the layout of every slot of one feed. A value, immutable once made.
struct BatchLayout {
  std::vector<TensorPlace> tensors;
  uint32_t batch_size = 0;   // samples a slot can hold
  uint64_t slot_bytes = 0;   // bytes used of a slot
  uint64_t slot_stride = 0;  // bytes from one slot to the next; a multiple of kSlotAlignment

  // Places `samples` tensors one behind the other. kInvalidArgument when there is none, a name repeats or is
  // empty, or a size overflows.
  static Result<BatchLayout> Create(const std::vector<TensorSpec>& samples, uint32_t batch_size);
  bool operator==(const BatchLayout&) const = default;
};

}  // namespace pinfeed
