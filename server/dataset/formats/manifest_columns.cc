// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/manifest_columns.h"

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "server/dataset/file_kinds.h"

namespace pinfeed {
namespace {

// Whether the cell has an integer beyond those that float64 all has.
bool HasLargeInteger(const Cell& cell) {
  if (const auto* const integer = std::get_if<int64_t>(&cell)) return IsLargeInteger(*integer);
  const auto* const list = std::get_if<NumberList<int64_t>>(&cell);
  return list != nullptr && std::ranges::any_of(list->values, IsLargeInteger);
}

}  // namespace

ColumnType::Kind ColumnType::KindOf(const Cell& cell) {
  static constexpr Kind kKinds[] = {Kind::kMixed, Kind::kBool,     Kind::kInteger, Kind::kReal,
                                    Kind::kText,  Kind::kIntegers, Kind::kReals};
  static_assert(std::size(kKinds) == std::variant_size_v<Cell>);
  return kKinds[cell.index()];
}

std::optional<ColumnType::Kind> ColumnType::CommonKind(Kind a, Kind b) {
  if (a == b || a == Kind::kUnknown) return b;
  const auto both = [&](Kind x, Kind y) { return (a == x && b == y) || (a == y && b == x); };
  if (both(Kind::kInteger, Kind::kReal)) return Kind::kReal;
  if (both(Kind::kIntegers, Kind::kReals)) return Kind::kReals;
  return std::nullopt;
}

void ColumnType::Add(const Cell& cell, std::optional<std::string_view> written, uint64_t line) {
  if (written) {
    has_words_ |= !written->empty() && std::holds_alternative<std::string>(cell);
    names_images_ &= written->empty() || IsNamedAsImage(*written);
    longest_ = std::max(longest_, written->size());
    total_ += written->size();
  }
  if (kind_ == Kind::kMixed) return;
  const auto fail = [&](const std::string& what) {
    kind_ = Kind::kMixed;
    reason_ = "line " + std::to_string(line) + " " + what;
  };
  if (const auto* const none = std::get_if<NoValue>(&cell)) {
    return fail(none->missing ? "has no value for it"
                              : "has a value for it that is neither a number (float64, or an integer within "
                                "int64), a text, a list of numbers (of them integers within 2^53 beside "
                                "others) nor one of lists of numbers of one length");
  }
  const std::optional<Kind> common = CommonKind(kind_, KindOf(cell));
  if (!common) return fail("has another type of value for it than the lines before");
  has_large_integers_ |= HasLargeInteger(cell);
  if (has_large_integers_ && (*common == Kind::kReal || *common == Kind::kReals)) {
    return fail(
        "is the first by which it has integers beyond 2^53 and other numbers as well: as float64 the "
        "integers "
        "would change");
  }
  size_t length = 0;
  std::optional<size_t> width;  // of a list that is not empty
  const auto measure = [&](const auto* list) {
    if (list == nullptr || list->values.empty()) return;
    width = list->width;
    length = list->values.size() / std::max<size_t>(*width, 1);
  };
  measure(std::get_if<NumberList<int64_t>>(&cell));
  measure(std::get_if<NumberList<double>>(&cell));
  if (width && longest_ > 0 && *width != width_)
    return fail("has lists of another length in its list for it than the lines before");
  width_ = width.value_or(width_);
  if (const auto* const text = std::get_if<std::string>(&cell)) {
    length = text->size();
    names_images_ &= written.has_value() || IsNamedAsImage(*text);
  }
  kind_ = *common;
  shortest_ = std::min(shortest_, length);
  longest_ = std::max(longest_, length);
  if (!written) total_ += length;
}

std::optional<Field> ColumnType::field() const {
  if (is_text()) return Field{{"", DType::kUint8, {static_cast<int64_t>(longest_)}}, FieldKind::kRagged};
  std::vector<int64_t> list = {static_cast<int64_t>(longest_)};
  if (width_ > 0) list.push_back(static_cast<int64_t>(width_));
  const FieldKind kind = shortest_ == longest_ ? FieldKind::kTensor : FieldKind::kRagged;
  switch (kind_) {
    case Kind::kBool:
      return Field{{"", DType::kBool, {}}};
    case Kind::kInteger:
      return Field{{"", DType::kInt64, {}}};
    case Kind::kReal:
      return Field{{"", DType::kFloat64, {}}};
    case Kind::kIntegers:
      if (longest_ == 0) return std::nullopt;
      return Field{{"", DType::kInt64, list}, kind};
    case Kind::kReals:
      return Field{{"", DType::kFloat64, list}, kind};
    default:
      return std::nullopt;
  }
}

std::string ColumnType::reason() const {
  return kind_ == Kind::kIntegers ? "all its lists are empty" : reason_;
}

std::optional<std::string_view> TextOf(const TableReader& table, const std::vector<Cell>& cells,
                                       size_t column) {
  if (const auto written = table.Written(column)) return written;
  if (const auto* const text = std::get_if<std::string>(&cells[column])) return *text;
  return std::nullopt;
}

uint64_t ColumnValues::ValueBytes(uint64_t rows, uint64_t total) const {
  if (!ragged_) return rows * max_bytes_;
  const uint64_t longest = std::max<uint64_t>(static_cast<uint64_t>(spec_.shape[0]), 1);
  return total * (max_bytes_ / longest);
}

uint64_t ColumnValues::MemoryOf(uint64_t rows, uint64_t total) const {
  return ValueBytes(rows, total) + (ragged_ ? rows * sizeof(uint32_t) : 0);
}

void ColumnValues::Reserve(uint64_t rows, uint64_t total) {
  reserved_bytes_ = ValueBytes(rows, total);
  bytes_.reserve(reserved_bytes_);
  if (ragged_) ends_.reserve(rows);
}

template <typename T>
void ColumnValues::Append(const T& value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  bytes_.insert(bytes_.end(), bytes, bytes + sizeof value);
}

void ColumnValues::AddInteger(int64_t value) {
  Append(value);
}

void ColumnValues::Add(const Cell& cell) {
  const size_t before = bytes_.size();
  const auto add = [&](auto value) {
    if (spec_.dtype == DType::kFloat64) {
      Append(static_cast<double>(value));
    } else if (std::is_same_v<decltype(value), int64_t> && spec_.dtype == DType::kInt64) {
      Append(value);
    }
  };
  if (const auto* const flag = std::get_if<bool>(&cell)) {
    if (spec_.dtype == DType::kBool) bytes_.push_back(std::byte{*flag});
  } else if (const auto* const integer = std::get_if<int64_t>(&cell)) {
    add(*integer);
  } else if (const auto* const real = std::get_if<double>(&cell)) {
    add(*real);
  }
  bool is_list = false;
  const size_t width = spec_.shape.size() > 1 ? static_cast<size_t>(spec_.shape[1]) : 0;
  const auto add_list = [&](const auto* list) {
    if (list == nullptr || (!list->values.empty() && list->width != width)) return;
    for (const auto value : list->values) add(value);
    is_list = bytes_.size() - before == list->values.size() * DTypeSize(spec_.dtype);
  };
  add_list(std::get_if<NumberList<int64_t>>(&cell));
  add_list(std::get_if<NumberList<double>>(&cell));
  const size_t added = bytes_.size() - before;
  const bool is_value = ragged_ ? added <= max_bytes_ && is_list : added == max_bytes_;
  if (!is_value || bytes_.size() > reserved_bytes_) {
    bytes_.resize(before);
  } else if (ragged_) {
    ends_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
}

void ColumnValues::AddText(std::string_view text) {
  if (spec_.dtype != DType::kUint8 || text.size() > max_bytes_) return;
  if (text.size() > reserved_bytes_ - bytes_.size()) return;
  const std::span<const std::byte> value = std::as_bytes(std::span(text));
  bytes_.insert(bytes_.end(), value.begin(), value.end());
  ends_.push_back(static_cast<uint32_t>(bytes_.size()));
}

std::span<const std::byte> ColumnValues::At(uint64_t row) const {
  if (!ragged_) return std::span(bytes_).subspan(row * max_bytes_, max_bytes_);
  const size_t begin = row == 0 ? 0 : ends_[row - 1];
  return std::span(bytes_).subspan(begin, ends_[row] - begin);
}

}  // namespace pinfeed
