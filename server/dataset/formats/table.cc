// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/table.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/quote.h"
#include "server/dataset/file_kinds.h"

namespace pinfeed {
namespace {

constexpr size_t kTableWindowBytes = size_t{1} << 20;

// Purpose: the bytes of a file, one after the other.
class ByteSource {
 public:
  explicit ByteSource(const RandomAccessFile& file) : file_(file) {}

  // -1 at the end.
  Result<int> Next() {
    if (at_ == window_.size()) {
      if (offset_ == file_.size()) return -1;
      window_.resize(std::min<uint64_t>(kTableWindowBytes, file_.size() - offset_));
      RETURN_IF_ERROR(file_.ReadAt(offset_, window_));
      at_ = offset_ == 0 && StartsWithMark() ? kMark.size() : 0;
      offset_ += window_.size();
      if (at_ == window_.size()) return -1;
    }
    return std::to_integer<int>(window_[at_++]);
  }
  const RandomAccessFile& file() const { return file_; }

 private:
  static constexpr std::string_view kMark = "\xEF\xBB\xBF";  // UTF-8's byte order mark
  bool StartsWithMark() const {
    return window_.size() >= kMark.size() &&
           std::string_view(reinterpret_cast<const char*>(window_.data()), kMark.size()) == kMark;
  }

  const RandomAccessFile& file_;
  std::vector<std::byte> window_;
  size_t at_ = 0;
  uint64_t offset_ = 0;  // behind the window
};

Status Wrong(const RandomAccessFile& file, uint64_t line, const std::string& reason) {
  return InvalidArgument("line " + std::to_string(line) + " of " + QuotePath(file.path()) + ": " + reason);
}

Status TooLong(const RandomAccessFile& file, uint64_t line) {
  return Wrong(file, line, "a row has more than " + std::to_string(kMaxRowBytes) + " bytes");
}

template <typename Number>
std::optional<Number> NumberOf(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

class JsonLines final : public TableReader {
 public:
  explicit JsonLines(const RandomAccessFile& file) : source_(file) {}

  Result<bool> Next(std::vector<Cell>& cells) override {
    std::string text;
    do {  // empty lines are passed over
      ASSIGN_OR_RETURN(const bool more, NextLine(text));
      if (!more) return false;
    } while (text.find_first_not_of(" \t\r") == std::string::npos);
    const nlohmann::json row = nlohmann::json::parse(text, nullptr, false);
    if (!row.is_object())
      return Wrong(source_.file(), line_,
                   row.is_discarded()
                       ? "is not JSON in UTF-8 on one line (NaN and Infinity are no JSON either)"
                       : "is no JSON object");
    cells.assign(columns_.size(), NoValue());
    for (const auto& [name, value] : row.items()) {
      const auto [place, is_new] = places_.try_emplace(name, columns_.size());
      if (is_new) {
        if (columns_.size() == kMaxColumns)
          return Wrong(source_.file(), line_,
                       "the rows have more than " + std::to_string(kMaxColumns) + " keys");
        columns_.push_back(name);
        cells.emplace_back();
      }
      cells[place->second] = CellOf(value);
    }
    return true;
  }

 private:
  Result<bool> NextLine(std::string& text) {
    text.clear();
    ++line_;
    for (;;) {
      ASSIGN_OR_RETURN(const int byte, source_.Next());
      if (byte == '\n') return true;
      if (byte < 0) return !text.empty();
      if (text.size() == kMaxRowBytes) return TooLong(source_.file(), line_);
      text += static_cast<char>(byte);
    }
  }
  static bool FitsInteger(const nlohmann::json& value) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  }
  static Cell CellOf(const nlohmann::json& value) {
    if (value.is_null()) return NoValue();
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_string()) return value.get<std::string>();
    if (FitsInteger(value)) return value.get<int64_t>();
    if (value.is_number_float()) return value.get<double>();
    const auto number = [](const nlohmann::json& item) {
      return FitsInteger(item) || item.is_number_float();
    };
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), number))
      return NoValue{.missing = false};
    if (std::all_of(value.begin(), value.end(), FitsInteger)) return value.get<std::vector<int64_t>>();
    return value.get<std::vector<double>>();
  }

  ByteSource source_;
  std::map<std::string, size_t, std::less<>> places_;
};

class Separated final : public TableReader {
 public:
  Separated(const RandomAccessFile& file, char separator) : source_(file), separator_(separator) {}

  Status ReadHeader() {
    std::vector<Text> names;
    ASSIGN_OR_RETURN(const bool found, NextRow(names));
    if (!found) return Wrong(source_.file(), 1, "the file has no row; the first one names the columns");
    for (Text& name : names) {
      if (name.text.starts_with(' ') || name.text.ends_with(' '))
        return Wrong(source_.file(), line_,
                     "the column " + QuotePath(name.text) + " has spaces around its name");
      if (std::ranges::find(columns_, name.text) != columns_.end())
        return Wrong(source_.file(), line_, "the column " + QuotePath(name.text) + " is there twice");
      columns_.push_back(std::move(name.text));
    }
    return OkStatus();
  }

  Result<bool> Next(std::vector<Cell>& cells) override {
    ASSIGN_OR_RETURN(const bool found, NextRow(texts_));
    if (!found) return false;
    if (texts_.size() != columns_.size()) {
      return Wrong(source_.file(), line_,
                   "the row has " + std::to_string(texts_.size()) + " values, but there are " +
                       std::to_string(columns_.size()) + " columns");
    }
    cells.clear();
    for (Text& cell : texts_) cells.push_back(CellOf(cell));
    return true;
  }

 private:
  struct Text {
    std::string text;
    bool quoted = false;
  };

  // A row that is one empty line is passed over.
  Result<bool> NextRow(std::vector<Text>& row) {
    row.assign(1, {});
    line_ = next_line_;
    size_t bytes = 0;
    bool in_quotes = false;
    bool empty = true;
    for (;;) {
      ASSIGN_OR_RETURN(int byte, Take());
      if (byte < 0 && in_quotes) return Wrong(source_.file(), line_, "a quote is never closed");
      if (byte < 0) return !empty;
      if (++bytes > kMaxRowBytes) return TooLong(source_.file(), line_);
      const char c = static_cast<char>(byte);
      Text& cell = row.back();
      if (in_quotes) {
        if (c != '"') {
          cell.text += c;
          continue;
        }
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
        continue;
      }
      ASSIGN_OR_RETURN(const int next, Peek());
      if (c == '\r' && (next == '\n' || next < 0)) continue;
      empty = false;
      if (c == separator_) {
        if (row.size() == kMaxColumns)
          return Wrong(source_.file(), line_,
                       "there are more than " + std::to_string(kMaxColumns) + " columns");
        row.emplace_back();
      } else if (c == '"' && cell.text.empty() && !cell.quoted) {
        cell.quoted = in_quotes = true;
      } else if (c == '"' || cell.quoted) {
        return Wrong(source_.file(), line_, "a quote stands within a value; double it, and quote the value");
      } else {
        cell.text += c;
      }
    }
  }

  Result<int> Peek() {
    if (!peeked_) {
      ASSIGN_OR_RETURN(peeked_, source_.Next());
    }
    return *peeked_;
  }
  Result<int> Take() {
    ASSIGN_OR_RETURN(const int byte, Peek());
    peeked_.reset();
    if (byte == '\n') ++next_line_;
    return byte;
  }

  // Quoted or not, what is written as a number is one. Numbers that no type here holds exactly, and those
  // that begin with zeros, such as postal codes, are not.
  static Cell CellOf(Text& cell) {
    if (cell.text.empty() && !cell.quoted) return NoValue();
    const std::string_view text = cell.text;
    const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
    if (!digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos) {
      if (digits.size() > 1 && digits.starts_with('0')) return std::move(cell.text);
      if (const auto integer = NumberOf<int64_t>(text)) return *integer;
      return NoValue{.missing = false};
    }
    // from_chars takes "inf" and "nan", too; a word is a text here.
    const bool number = text.find_first_not_of("0123456789+-.eE") == std::string_view::npos;
    if (const auto real = number ? NumberOf<double>(text) : std::nullopt) return *real;
    return std::move(cell.text);
  }

  ByteSource source_;
  const char separator_;
  std::optional<int> peeked_;
  uint64_t next_line_ = 1;
  std::vector<Text> texts_;
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

Result<std::unique_ptr<TableReader>> OpenTable(const RandomAccessFile& file, TableKind kind) {
  if (file.size() > kMaxTableBytes) {
    return InvalidArgument("open manifest " + QuotePath(file.path()) + ": its " +
                           std::to_string(file.size()) + " bytes exceed the limit of " +
                           std::to_string(kMaxTableBytes) + "; split the dataset");
  }
  if (kind == TableKind::kJsonLines) return std::unique_ptr<TableReader>(std::make_unique<JsonLines>(file));
  auto table = std::make_unique<Separated>(file, kind == TableKind::kCommaSeparated ? ',' : '\t');
  RETURN_IF_ERROR(table->ReadHeader());
  return std::unique_ptr<TableReader>(std::move(table));
}

}  // namespace pinfeed
