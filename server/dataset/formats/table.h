// SPDX-License-Identifier: Apache-2.0
// Rows of a table, one by one. In: a file of JSON lines, or of comma- or tab-separated values (RFC 4180, the
// first row names the columns). Out: typed cells, every row checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "server/storage/storage.h"

namespace pinfeed {

inline constexpr uint64_t kMaxTableBytes = uint64_t{1} << 30;  // of the file
inline constexpr size_t kMaxRowBytes = size_t{16} << 20;
inline constexpr size_t kMaxColumns = 1024;

// What cannot become a number or a text: null and absent values, objects, lists of other things than numbers.
struct NoValue {
  bool missing = true;
};
using Cell =
    std::variant<NoValue, bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

// Purpose: reads a table once, front to back, in memory of about one row. Borrows the file. Threads: one.
// Errors: kInvalidArgument names the file, the line and what is wrong there.
class TableReader {
 public:
  virtual ~TableReader() = default;

  // Sets `cells` to the next row, by column; columns that a row of JSON does not have are NoValue. False:
  // there is no other row.
  virtual Result<bool> Next(std::vector<Cell>& cells) = 0;
  // The columns that were seen so far; more come with rows of JSON only.
  const std::vector<std::string>& columns() const { return columns_; }
  uint64_t line() const { return line_; }  // where the row began, from 1 on

 protected:
  std::vector<std::string> columns_;
  uint64_t line_ = 0;
};

enum class TableKind { kJsonLines, kCommaSeparated, kTabSeparated };

// By the file's extension; kInvalidArgument names those that are known.
Result<TableKind> TableKindOf(const std::string& path);
// kInvalidArgument when the file is larger than kMaxTableBytes.
Result<std::unique_ptr<TableReader>> OpenTable(const RandomAccessFile& file, TableKind kind);

}  // namespace pinfeed
