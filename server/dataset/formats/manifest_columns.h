// SPDX-License-Identifier: Apache-2.0
// The columns of a manifest. In: the rows of a table, in two passes. Out: the type of each column, then its
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

// Purpose: infers the type of a column, row by row. A value. Threads: one.
class ColumnType {
 public:
  // Adds the column's cell of the next row, which is in line `line` of the file. `written` is the cell as
  // TableReader::Written gives it.
  void Add(const Cell& cell, std::optional<std::string_view> written, uint64_t line);

  // A column of written cells is one of texts if any cell that is not empty is no number. Its empty cells are
  // then empty texts, and its numbers texts as well.
  bool is_text() const { return kind_ == Kind::kText || (kind_ == Kind::kMixed && has_words_); }
  // Whether the cells are of different types, or some have no value. Such a column of texts is a field, but
  // not one of labels: see reason().
  bool is_mixed() const { return kind_ == Kind::kMixed; }
  // Whether every text so far that is not empty has an image's extension, and there is one.
  bool names_images() const { return is_text() && names_images_ && longest_ > 0; }
  size_t longest() const { return longest_; }  // the longest list, in elements, or text, in bytes
  uint64_t total() const { return total_; }    // of all lists or texts, as longest
  // The field of the column, without its name. It is kTensor for numbers and for lists of one length, kRagged
  // for texts (UTF-8 bytes) and for lists of different lengths. Nothing if the column is not a field: see
  // reason().
  std::optional<Field> field() const;
  // Why the column is not a field, or is_mixed: "line 17 has no value for it", ...
  std::string reason() const;

 private:
  enum class Kind { kUnknown, kBool, kInteger, kReal, kText, kIntegers, kReals, kMixed };
  static Kind KindOf(const Cell& cell);
  static std::optional<Kind> CommonKind(Kind a, Kind b);

  Kind kind_ = Kind::kUnknown;
  size_t shortest_ = std::numeric_limits<size_t>::max();  // the shortest list, in elements, or text, in bytes
  size_t longest_ = 0;
  uint64_t total_ = 0;
  size_t width_ = 0;  // see NumberList; of the lists that are not empty
  bool names_images_ = true;
  bool has_words_ = false;           // some written cell is not empty, and no number
  bool has_large_integers_ = false;  // that float64 may not have
  std::string reason_;
};

// The cell of the row that `table` has read into `cells`, in a column of texts. Nothing if it is no text.
std::optional<std::string_view> TextOf(const TableReader& table, const std::vector<Cell>& cells,
                                       size_t column);

// Purpose: the values of one column, as the bytes of its samples. A value. Threads: built by one thread;
// const methods from any thread afterwards.
class ColumnValues {
 public:
  // Precondition: the field's spec has a size.
  explicit ColumnValues(Field field)
      : spec_(std::move(field.spec)),
        ragged_(field.kind == FieldKind::kRagged),
        max_bytes_(spec_.SampleBytes().value()) {}
  // What so many rows take, whose lists or texts have `total` elements together (see ColumnType::total).
  uint64_t MemoryOf(uint64_t rows, uint64_t total) const;
  void Reserve(uint64_t rows, uint64_t total);
  // Adds nothing if the cell is not of the column's type, longer than the longest one, or more than there is
  // room for. Precondition: the column is not one of texts.
  void Add(const Cell& cell);
  // Adds a text, or nothing, as above. Precondition: the column is one of texts.
  void AddText(std::string_view text);
  void AddInteger(int64_t value);
  uint64_t rows() const { return ragged_ ? ends_.size() : bytes_.size() / max_bytes_; }
  std::span<const std::byte> At(uint64_t row) const;
  // The values of all rows.
  std::string_view bytes() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  std::string_view ends() const {
    return {reinterpret_cast<const char*>(ends_.data()), ends_.size() * sizeof(uint32_t)};
  }

 private:
  // Of the values alone.
  uint64_t ValueBytes(uint64_t rows, uint64_t total) const;
  template <typename T>
  void Append(const T& value);

  TensorSpec spec_;
  bool ragged_;
  size_t max_bytes_;             // of a row; of a tensor's each
  uint64_t reserved_bytes_ = 0;  // for bytes_
  std::vector<std::byte> bytes_;
  std::vector<uint32_t> ends_;  // of the rows of a ragged column; a table has fewer bytes than 2^32
};

}  // namespace pinfeed
