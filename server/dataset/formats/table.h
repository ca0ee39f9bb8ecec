// SPDX-License-Identifier: Apache-2.0
// Reads the rows of a table one by one. In: a file of JSON lines, or of comma- or tab-separated values (RFC
// 4180) whose first row names the columns. Out: typed cells of rows that were checked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/memory/index_memory.h"
#include "server/storage/storage.h"

namespace pinfeed {

inline constexpr uint64_t kMaxTableBytes = uint64_t{1} << 28;  // the size of the whole file
inline constexpr size_t kMaxRowBytes =
    size_t{1} << 20;  // the size of one row in the file; parsed JSON takes up to 64 times as much
inline constexpr size_t kMaxColumns = 1024;

// A cell without a usable value.
struct NoValue {
  // True: the row has no value here: null, an absent key, or an empty cell without quotes. False: it has a
  // value of an unsupported kind: an object, a list of anything but numbers and lists of one length, a list
  // of large integers beside other numbers, or an integer beyond int64.
  bool missing = true;
};
// A list of numbers, or of lists of numbers that all have one length.
template <typename T>
struct NumberList {
  std::vector<T> values;  // of the lists inside, one behind the other
  size_t width = 0;       // the length of the lists inside; 0: there are none
};
// Whether it is beyond the integers that float64 has all of.
constexpr bool IsLargeInteger(int64_t value) {
  constexpr int64_t kLimit = int64_t{1} << 53;
  return value > kLimit || value < -kLimit;
}
// The value of one column in one row.
using Cell =
    std::variant<NoValue, bool, int64_t, double, std::string, NumberList<int64_t>, NumberList<double>>;

// Purpose: reads a table once, front to back. Holds about one row and one read buffer in memory. Borrows the
// file. Threads: one. Errors: kInvalidArgument names the file, the line and the fault; others come from
// reading the file.
class TableReader {
 public:
  virtual ~TableReader() = default;

  // Sets `cells` to the next row, in the order of columns(). A known column that a JSON row lacks gets
  // NoValue. Returns false after the last row.
  virtual Result<bool> Next(std::vector<Cell>& cells) = 0;
  // A cell of the row that Next has read, as it is written, without its quotes; nothing for JSON, whose
  // values have types, and for a column that the table does not have. Valid until the next row is read.
  virtual std::optional<std::string_view> Written(size_t /*column*/) const { return std::nullopt; }
  // The names of the columns seen so far. With JSON lines, a later row can add columns at the end.
  const std::vector<std::string>& columns() const { return columns_; }
  uint64_t line() const { return line_; }  // the line on which the row began; the first line is 1
  // A hash of the file's bytes, once the last row was read. Detects changes, not forgery.
  virtual uint64_t ContentHash() const = 0;

 protected:
  std::vector<std::string> columns_;
  uint64_t line_ = 0;
};

enum class TableKind { kJsonLines, kCommaSeparated, kTabSeparated };

// Returns the kind by the file's extension. kInvalidArgument if it is none of the known ones, and names them.
Result<TableKind> TableKindOf(const std::string& path);
// Opens a table and reads its header row, if its kind has one. The reader asks `memory` for what a long row
// takes. kInvalidArgument if the file is larger than kMaxTableBytes, or the header is wrong.
Result<std::unique_ptr<TableReader>> OpenTable(const RandomAccessFile& file, TableKind kind,
                                               IndexMemory& memory);

}  // namespace pinfeed
