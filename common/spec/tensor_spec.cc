// SPDX-License-Identifier: Apache-2.0
#include "common/spec/tensor_spec.h"

#include <array>
#include <set>

namespace pinfeed {
namespace {

struct DTypeInfo {
  std::string_view name;
  size_t size;
};

constexpr std::array<DTypeInfo, 16> kDTypes = {{{"unspecified", 0},
                                                {"bool", 1},
                                                {"uint8", 1},
                                                {"int8", 1},
                                                {"uint16", 2},
                                                {"int16", 2},
                                                {"uint32", 4},
                                                {"int32", 4},
                                                {"uint64", 8},
                                                {"int64", 8},
                                                {"float16", 2},
                                                {"bfloat16", 2},
                                                {"float32", 4},
                                                {"float64", 8},
                                                {"complex64", 8},
                                                {"complex128", 16}}};

constexpr uint64_t kMaxBytes = uint64_t{1} << 62;

bool AlignUp(uint64_t value, uint64_t alignment, uint64_t* out) {
  if (!CheckedAdd(value, alignment - 1, out)) return false;
  *out -= *out % alignment;
  return true;
}

}  // namespace

size_t DTypeSize(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  return index < kDTypes.size() ? kDTypes[index].size : 0;
}

std::string_view DTypeName(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  return index < kDTypes.size() ? kDTypes[index].name : kDTypes[0].name;
}

Result<DType> DTypeFromName(std::string_view name) {
  for (size_t i = 1; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  std::string known;
  for (size_t i = 1; i < kDTypes.size(); ++i) known += (i > 1 ? ", " : "") + std::string(kDTypes[i].name);
  return InvalidArgument("unknown dtype '" + std::string(name) + "'; one of " + known);
}

bool CheckedMul(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}
bool CheckedAdd(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}

Result<uint64_t> TensorSpec::SampleBytes() const {
  uint64_t bytes = DTypeSize(dtype);
  if (bytes == 0) return InvalidArgument("tensor '" + name + "' has no known dtype");
  for (const int64_t dimension : shape) {
    if (dimension < 0)
      return InvalidArgument("tensor '" + name + "' has the negative dimension " + std::to_string(dimension));
    if (!CheckedMul(bytes, static_cast<uint64_t>(dimension), &bytes) || bytes > kMaxBytes) {
      return InvalidArgument("tensor '" + name + "' is too large: its bytes do not fit 62 bits");
    }
  }
  return bytes;
}

uint64_t TensorSpec::RowBytes() const {
  uint64_t bytes = DTypeSize(dtype);
  for (size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<uint64_t>(shape[i]);
  return bytes;
}

Result<BatchLayout> BatchLayout::Create(const std::vector<TensorSpec>& samples, uint32_t batch_size) {
  if (samples.empty()) return InvalidArgument("a batch needs at least one tensor");
  if (batch_size == 0) return InvalidArgument("batch_size is 0; it must be at least 1");
  BatchLayout layout;
  layout.batch_size = batch_size;
  std::set<std::string_view> names;
  uint64_t end = 0;
  for (const TensorSpec& spec : samples) {
    if (spec.name.empty()) return InvalidArgument("a tensor has an empty name");
    if (!names.insert(spec.name).second) return InvalidArgument("two tensors are named '" + spec.name + "'");
    ASSIGN_OR_RETURN(const uint64_t sample_bytes, spec.SampleBytes());
    uint64_t offset = 0;
    uint64_t bytes = 0;
    if (!AlignUp(end, kTensorAlignment, &offset) || !CheckedMul(sample_bytes, batch_size, &bytes) ||
        !CheckedAdd(offset, bytes, &end) || end > kMaxBytes) {
      return InvalidArgument("a batch of " + std::to_string(batch_size) + " samples of tensor '" + spec.name +
                             "' (" + std::to_string(sample_bytes) + " bytes each) does not fit 62 bits");
    }
    layout.tensors.push_back({spec, offset, sample_bytes});
  }
  layout.slot_bytes = end;
  if (!AlignUp(end == 0 ? 1 : end, kSlotAlignment, &layout.slot_stride))
    return InvalidArgument("a batch is too large");
  return layout;
}

}  // namespace pinfeed
