// SPDX-License-Identifier: Apache-2.0
// What the columns of a manifest hold. In: the rows of a table, twice. Out: the type of each column, then its
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/tensor_spec.h"
#include "server/dataset/formats/table.h"

namespace pinfeed {

// Purpose: finds out what one column holds, row by row. A value. Threads: one.
class ColumnType {
 public:
  // Row `row` of the table, which stands in `line`.
  void Add(const Cell& cell, uint64_t line);

  bool is_text() const { return kind_ == Kind::kText; }
  // The element type and the shape of one row; none for what is no tensor, and then why() says why.
  std::optional<TensorSpec> tensor() const;
  // "line 17 has no value", "it holds text", ...
  std::string why() const;

 private:
  enum class Kind { kUnknown, kBool, kInteger, kReal, kText, kIntegers, kReals, kMixed };
  static Kind KindOf(const Cell& cell);
  static std::optional<Kind> Common(Kind a, Kind b);

  Kind kind_ = Kind::kUnknown;
  size_t length_ = 0;  // of lists
  std::string problem_;
};

// Purpose: the values of one tensor column, as samples' bytes. A value. Threads: built by one; const methods
// from any.
class ColumnValues {
 public:
  // Precondition: the spec has a size.
  explicit ColumnValues(TensorSpec spec) : spec_(std::move(spec)), row_bytes_(spec_.SampleBytes().value()) {}
  const TensorSpec& spec() const { return spec_; }
  // Adds nothing when the cell is not of the column's type (ColumnType).
  void Add(const Cell& cell);
  void AddInteger(int64_t value);
  uint64_t rows() const { return bytes_.size() / row_bytes_; }
  std::span<const std::byte> At(uint64_t row) const;
  // Of all rows.
  std::string_view bytes() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  template <typename T>
  void Append(const T& value);

  TensorSpec spec_;
  size_t row_bytes_;
  std::vector<std::byte> bytes_;
};

}  // namespace pinfeed
