// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/parse_number.h"
#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/formats/byte_source.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxNamesBytes = size_t{1} << 20;
constexpr uint64_t kParsedBytes = 64;                // what a byte of JSON takes when it is parsed, at most
constexpr size_t kShortRowBytes = size_t{16} << 10;  // no memory is asked for shorter rows

// What readers of both kinds of tables have.
class SourceReader : public TableReader {
 public:
  uint64_t ContentHash() const override { return source_.hash(); }

 protected:
  explicit SourceReader(const RandomAccessFile& file) : source_(file) {}
  Status FaultAt(uint64_t line, const std::string& reason) const {
    return InvalidArgument("line " + std::to_string(line) + " of " + QuotePath(source_.file().path()) + ": " +
                           reason);
  }
  Status Fault(const std::string& reason) const { return FaultAt(line_, reason); }
  Status TooLong() const { return Fault("a row has more than " + std::to_string(kMaxRowBytes) + " bytes"); }

  ByteSource source_;
};

std::optional<double> ParseReal(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc()) return number;
  // from_chars does not tell what is too small, which JSON's parser makes 0, from what is too large.
  number = std::strtod(std::string(text).c_str(), nullptr);
  return std::abs(number) < 1 ? std::optional(number) : std::nullopt;
}

class JsonLines final : public SourceReader {
 public:
  JsonLines(const RandomAccessFile& file, IndexMemory& memory) : SourceReader(file), memory_(memory) {}

  Result<bool> Next(std::vector<Cell>& cells) override {
    do {  // skips empty lines
      ASSIGN_OR_RETURN(const bool more, NextLine(text_));
      has_huge_.reset();
      if (!more) return false;
    } while (text_.find_first_not_of(" \t\r") == std::string::npos);
    if (text_.size() > kShortRowBytes) RETURN_IF_ERROR(memory_.Add(kParsedBytes * text_.size()));
    const nlohmann::json row = nlohmann::json::parse(text_, nullptr, false);
    if (!row.is_object())
      return Fault(row.is_discarded() ? "is not JSON in UTF-8 on one line, or has a number beyond float64 "
                                        "(NaN and Infinity are not JSON)"
                                      : "is not a JSON object");
    cells.assign(columns_.size(), NoValue());
    for (const auto& [name, value] : row.items()) {
      const auto [index, is_new] = column_indexes_.try_emplace(name, columns_.size());
      if (is_new) {
        if (columns_.size() == kMaxColumns)
          return Fault("the rows have more than " + std::to_string(kMaxColumns) + " keys");
        names_bytes_ += name.size();
        if (names_bytes_ > kMaxNamesBytes)
          return Fault("the rows' keys have more than " + std::to_string(kMaxNamesBytes) + " bytes");
        columns_.push_back(name);
        cells.emplace_back();
      }
      cells[index->second] = CellOf(value);
    }
    return true;
  }

 private:
  Result<bool> NextLine(std::string& text) {
    text.clear();
    ++line_;
    for (;;) {
      ASSIGN_OR_RETURN(const std::string_view next, source_.Next());
      if (next.empty()) return !text.empty();
      const std::string_view part = next.substr(0, next.find('\n'));
      if (part.size() > kMaxRowBytes - text.size()) return TooLong();
      text += part;
      const bool ends = part.size() < next.size();
      source_.Skip(part.size() + (ends ? 1 : 0));
      if (ends) return true;
    }
  }
  static bool FitsAWord(std::string_view integer) {
    return integer.front() == '-' ? ParseNumber<int64_t>(integer).has_value()
                                  : ParseNumber<uint64_t>(integer).has_value();
  }
  // Whether a row has integers beyond int64 and uint64. The parser makes them float64, as it does 1e20, so
  // this looks at the text of rows with such numbers.
  static bool HasHugeIntegers(std::string_view row) {
    for (size_t at = 0; at < row.size();) {
      if (row[at] == '"') {
        for (++at; row[at] != '"'; ++at)  // the row is JSON: strings end
          if (row[at] == '\\') ++at;
        ++at;
        continue;
      }
      const std::string_view number = row.substr(at, row.find_first_not_of("0123456789+-.eE", at) - at);
      if (!number.empty() && number.find_first_of(".eE") == std::string_view::npos && !FitsAWord(number))
        return true;
      at += std::max<size_t>(1, number.size());
    }
    return false;
  }
  // Reads the text once a row: a row may have very many such numbers.
  bool IsHugeInteger(double value) const {
    if (std::abs(value) < 0x1p63) return false;
    if (!has_huge_) has_huge_ = HasHugeIntegers(text_);
    return *has_huge_;
  }
  static bool FitsInteger(const nlohmann::json& value) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  }
  Cell CellOf(const nlohmann::json& value) const {
    if (value.is_null()) return NoValue();
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_string()) return value.get<std::string>();
    if (FitsInteger(value)) return value.get<int64_t>();
    if (IsReal(value)) return value.get<double>();
    return value.is_array() ? CellOfList(value) : NoValue{.missing = false};
  }
  bool IsReal(const nlohmann::json& value) const {
    return value.is_number_float() && !IsHugeInteger(value.get<double>());
  }
  Cell CellOfList(const nlohmann::json& list) const {
    const bool nested = !list.empty() && list.front().is_array();
    const size_t width = nested ? list.front().size() : 0;
    if (nested && width == 0) return NoValue{.missing = false};
    std::vector<const nlohmann::json*> numbers;
    for (const nlohmann::json& item : list) {
      if (item.is_array() != nested || (nested && item.size() != width)) return NoValue{.missing = false};
      if (!nested) numbers.push_back(&item);
      for (size_t i = 0; i < width; ++i) numbers.push_back(&item[i]);
    }
    const auto fits = [](const nlohmann::json* number) { return FitsInteger(*number); };
    const auto is_number = [this](const nlohmann::json* number) {
      return FitsInteger(*number) ? !IsLargeInteger(number->get<int64_t>()) : IsReal(*number);
    };
    if (std::ranges::all_of(numbers, fits)) return ListOf<int64_t>(numbers, width);
    if (std::ranges::all_of(numbers, is_number)) return ListOf<double>(numbers, width);
    return NoValue{.missing = false};
  }
  template <typename T>
  static NumberList<T> ListOf(const std::vector<const nlohmann::json*>& numbers, size_t width) {
    NumberList<T> list{{}, width};
    for (const nlohmann::json* const number : numbers) list.values.push_back(number->get<T>());
    return list;
  }

  IndexMemory& memory_;
  std::map<std::string, size_t, std::less<>> column_indexes_;
  size_t names_bytes_ = 0;
  std::string text_;                      // of the row that is read
  mutable std::optional<bool> has_huge_;  // whether HasHugeIntegers(text_), once it was asked
};

class SeparatedValues final : public SourceReader {
 public:
  SeparatedValues(const RandomAccessFile& file, char separator) : SourceReader(file), separator_(separator) {}

  Status ReadHeader() {
    ASSIGN_OR_RETURN(const std::string_view start, source_.Next());
    if (start.starts_with("\xff\xfe") || start.starts_with("\xfe\xff"))
      return FaultAt(1, "the file is UTF-16; save it as UTF-8");
    std::vector<RawCell> names;
    ASSIGN_OR_RETURN(const bool found, NextRow(names));
    if (!found) return FaultAt(1, "the file has no rows; the first row must name the columns");
    const std::string& first = names.front().text;
    if (const size_t other = first.find_first_of(kSeparators);
        names.size() == 1 && !names.front().quoted && other != std::string::npos) {
      const std::string what = first[other] == ';'   ? "a semicolon"
                               : first[other] == ',' ? "a comma"
                                                     : "a tab";
      return Fault(
          "the first row names one column with " + what + ", " + QuotePath(first) +
          "; separate values by commas in a .csv, and by tabs in a .tsv. If it is one name, quote it");
    }
    if (LookLikeValues(names)) {
      return Fault("the first row must name the columns, but all that it holds are numbers, such as " +
                   QuotePath(first) +
                   "; write names above it, or, if these are the names, begin one with a letter");
    }
    for (RawCell& name : names) {
      const std::string quoted = QuotePath(name.text);
      if (name.text.starts_with(' ') || name.text.ends_with(' '))
        return Fault("the column " + quoted + " has spaces around its name");
      const Cell cell = CellOf(name);
      const auto* const integer = std::get_if<int64_t>(&cell);
      if (std::holds_alternative<double>(cell) || (integer != nullptr && *integer < 0))
        return Fault(quoted +
                     " in the first row is a number, so that row may be a sample; write names above it, or "
                     "begin that name with a letter");
      if (IsNamedAsImage(name.text))
        return Fault(quoted + " names an image: write names above the first row, or rename that column");
      if (std::ranges::find(columns_, name.text) != columns_.end())
        return Fault("the column " + quoted + " appears twice; the first row must name each once");
      columns_.push_back(std::move(name.text));
    }
    return OkStatus();
  }

  Result<bool> Next(std::vector<Cell>& cells) override {
    ASSIGN_OR_RETURN(const bool found, NextRow(raw_cells_));
    if (!found) return false;
    if (raw_cells_.size() != columns_.size()) {
      return Fault("the row has " + std::to_string(raw_cells_.size()) + " values, but there are " +
                   std::to_string(columns_.size()) + " columns");
    }
    cells.clear();
    for (const RawCell& cell : raw_cells_) cells.push_back(CellOf(cell));
    return true;
  }
  std::optional<std::string_view> Written(size_t column) const override {
    if (column >= raw_cells_.size()) return std::nullopt;
    return raw_cells_[column].text;
  }

 private:
  struct RawCell {
    std::string text;
    bool quoted = false;
  };

  // Reads the next row; skips empty lines. Returns false at the end.
  Result<bool> NextRow(std::vector<RawCell>& row) {
    row.assign(1, {});
    line_ = next_line_;
    size_t bytes = 0;
    bool in_quotes = false;
    bool empty = true;
    for (;;) {
      ASSIGN_OR_RETURN(const std::string_view plain, NextPlain(in_quotes, row.back()));
      if (!plain.empty()) {
        bytes += plain.size();
        if (bytes > kMaxRowBytes) return TooLong();
        row.back().text += plain;
        next_line_ += static_cast<uint64_t>(std::ranges::count(plain, '\n'));
        source_.Skip(plain.size());
        empty = false;
        continue;
      }
      ASSIGN_OR_RETURN(int byte, Take());
      if (byte < 0 && in_quotes) return Fault("a quote is never closed");
      if (byte < 0) return !empty;
      if (++bytes > kMaxRowBytes) return TooLong();
      const char c = static_cast<char>(byte);
      RawCell& cell = row.back();
      if (in_quotes) {  // c is a quote
        ASSIGN_OR_RETURN(const int next, Peek());
        if (next == '"') {
          cell.text += c;
          RETURN_IF_ERROR(Take().status());
        } else {
          in_quotes = false;
        }
        continue;
      }
      if (c == '\n') {
        if (!empty) return true;
        line_ = next_line_;
        bytes = 0;
        continue;
      }
      if (c == '\r') {
        ASSIGN_OR_RETURN(const int next, Peek());
        // Before another one: on Windows, Python's csv.writer ends lines in "\r\r\n" without newline="".
        if (next == '\n' || next == '\r' || next < 0) continue;
        return Fault(
            "a carriage return stands within a line; end lines with a line feed, and quote a "
            "value that has one");
      }
      empty = false;
      if (c == separator_) {
        if (row.size() == kMaxColumns)
          return Fault("there are more than " + std::to_string(kMaxColumns) + " columns");
        row.emplace_back();
      } else if (c == '"' && cell.text.empty() && !cell.quoted) {
        cell.quoted = in_quotes = true;
      } else {  // a quote, or what follows one that closes
        return Fault(
            "a value contains a quote; double it, and quote the whole value, blanks around it included");
      }
    }
  }

  // Returns what comes next and is of the value itself, without a character that may have a meaning.
  Result<std::string_view> NextPlain(bool in_quotes, const RawCell& cell) {
    ASSIGN_OR_RETURN(const std::string_view next, source_.Next());
    if (in_quotes) return next.substr(0, next.find('"'));
    if (cell.quoted) return std::string_view();  // its quotes are closed
    const auto end = std::ranges::find_if(next, [separator = separator_](char c) {
      return c == separator || c == '\n' || c == '\r' || c == '"';
    });
    return std::string_view(next.begin(), end);
  }
  // The next byte, or -1 at the end.
  Result<int> Peek() {
    ASSIGN_OR_RETURN(const std::string_view next, source_.Next());
    return next.empty() ? -1 : static_cast<uint8_t>(next.front());
  }
  Result<int> Take() {
    ASSIGN_OR_RETURN(const int byte, Peek());
    if (byte >= 0) source_.Skip(1);
    if (byte == '\n') ++next_line_;
    return byte;
  }

  // A cell that reads as a number is one, with or without quotes. Exceptions: an integer beyond int64 is
  // NoValue, and digits with a leading zero, such as postal codes, are text.
  static Cell CellOf(const RawCell& cell) {
    if (cell.text.empty() && !cell.quoted) return NoValue();
    const std::string_view text = cell.text;
    const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
    if (!digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos) {
      if (digits.size() > 1 && digits.starts_with('0')) return cell.text;
      if (const auto integer = ParseNumber<int64_t>(text)) return *integer;
      return NoValue{.missing = false};
    }
    // from_chars accepts "inf" and "nan", too; here words are text.
    const bool number = text.find_first_not_of("0123456789+-.eE") == std::string_view::npos;
    if (const auto real = number ? ParseReal(text) : std::nullopt) return *real;
    return cell.text;
  }

  // Whether all are numbers or empty: a table without names would lose its first row. 0, 1, 2, ... are names,
  // as pandas gives them to columns.
  static bool LookLikeValues(const std::vector<RawCell>& names) {
    if (names.front().text.empty()) return false;  // as pandas leaves its index without a name
    bool counted = true;
    for (size_t i = 0; i < names.size(); ++i) {
      const Cell cell = CellOf(names[i]);
      const bool digits = names[i].text.find_first_not_of("0123456789") == std::string::npos;
      if (std::holds_alternative<std::string>(cell) && !digits) return false;  // digits: such as 00501
      const auto* const integer = std::get_if<int64_t>(&cell);
      counted &= integer != nullptr && *integer == static_cast<int64_t>(i);
    }
    return !counted;
  }

  static constexpr std::string_view kSeparators = ";,\t";  // that programs write

  const char separator_;
  uint64_t next_line_ = 1;
  std::vector<RawCell> raw_cells_;
};

}  // namespace

Result<TableKind> TableKindOf(const std::string& path) {
  static constexpr std::string_view kJson[] = {".jsonl", ".ndjson"};
  static constexpr std::string_view kComma[] = {".csv"};
  static constexpr std::string_view kTab[] = {".tsv"};
  if (HasExtension(path, kJson)) return TableKind::kJsonLines;
  if (HasExtension(path, kComma)) return TableKind::kCommaSeparated;
  if (HasExtension(path, kTab)) return TableKind::kTabSeparated;
  return InvalidArgument("open manifest " + QuotePath(path) +
                         ": its name must end in .jsonl, .ndjson, .csv or .tsv, which says how to read it");
}

Result<std::unique_ptr<TableReader>> OpenTable(const RandomAccessFile& file, TableKind kind,
                                               IndexMemory& memory) {
  if (file.size() > kMaxTableBytes) {
    return InvalidArgument("open manifest " + QuotePath(file.path()) + ": its " +
                           std::to_string(file.size()) + " bytes exceed the limit of " +
                           std::to_string(kMaxTableBytes) + "; split the dataset");
  }
  if (kind == TableKind::kJsonLines) return std::make_unique<JsonLines>(file, memory);
  auto table = std::make_unique<SeparatedValues>(file, kind == TableKind::kCommaSeparated ? ',' : '\t');
  RETURN_IF_ERROR(table->ReadHeader());
  return table;
}

}  // namespace pinfeed
