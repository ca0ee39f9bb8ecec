// SPDX-License-Identifier: Apache-2.0
// What the columns of a manifest hold. In: the rows of a table, twice. Out: the type of each column, then its
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/tensor_spec.h"
#include "server/dataset/dataset.h"
#include "server/dataset/formats/table.h"

namespace pinfeed {

// Purpose: finds out what one column holds, row by row. A value. Threads: one.
class ColumnType {
 public:
  // Row `row` of the table, which stands in `line`.
  void Add(const Cell& cell, uint64_t line);

  bool is_text() const { return kind_ == Kind::kText; }
  // Whether every value so far is a text that is named as an image.
  bool names_images() const { return is_text() && names_images_; }
  size_t longest() const { return longest_; }  // list, in elements, or text, in bytes
  // A field of one row, without its name: a kTensor one of numbers, or of lists of one length; a kRagged one
  // of texts (UTF-8 bytes), or of lists of different lengths. None for what is no field; then reason() says
  // why.
  std::optional<Field> field() const;
  // "line 17 has no value", "it holds text", ...
  std::string reason() const;

 private:
  enum class Kind { kUnknown, kBool, kInteger, kReal, kText, kIntegers, kReals, kMixed };
  static Kind KindOf(const Cell& cell);
  static std::optional<Kind> CommonKind(Kind a, Kind b);

  Kind kind_ = Kind::kUnknown;
  size_t shortest_ = std::numeric_limits<size_t>::max();  // list or text, in elements or bytes
  size_t longest_ = 0;
  bool names_images_ = true;
  std::string reason_;
};

// Purpose: the values of one column, as samples' bytes. A value. Threads: built by one; const methods from
// any.
class ColumnValues {
 public:
  // Precondition: the field's spec has a size.
  explicit ColumnValues(Field field)
      : spec_(std::move(field.spec)),
        ragged_(field.kind == FieldKind::kRagged),
        max_bytes_(spec_.SampleBytes().value()) {}
  const TensorSpec& spec() const { return spec_; }
  // Adds nothing when the cell is not of the column's type (ColumnType), or longer than all were.
  void Add(const Cell& cell);
  void AddInteger(int64_t value);
  uint64_t rows() const { return ragged_ ? ends_.size() : bytes_.size() / max_bytes_; }
  std::span<const std::byte> At(uint64_t row) const;
  // Of all rows.
  std::string_view bytes() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  std::string_view ends() const {
    return {reinterpret_cast<const char*>(ends_.data()), ends_.size() * sizeof(uint32_t)};
  }

 private:
  template <typename T>
  void Append(const T& value);

  TensorSpec spec_;
  bool ragged_;
  size_t max_bytes_;  // of a row; of a tensor's each
  std::vector<std::byte> bytes_;
  std::vector<uint32_t> ends_;  // of the rows of a ragged column; a table has fewer bytes than 2^32
};

}  // namespace pinfeed
