// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a table, the first of which says of what kind. Rows must come with the columns
// that the reader names, errors must name a line.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/dataset/formats/table.h"
#include "tests/fuzz/bytes.h"

namespace pinfeed {
namespace {

Status ReadTable(const Bytes& file, TableKind kind) {
  IndexMemory memory;
  ASSIGN_OR_RETURN(const std::unique_ptr<TableReader> table, OpenTable(file, kind, memory));
  std::vector<Cell> cells;
  for (uint64_t line = 0;;) {
    ASSIGN_OR_RETURN(const bool more, table->Next(cells));
    if (!more) return OkStatus();
    PF_CHECK(cells.size() == table->columns().size() && cells.size() <= kMaxColumns,
             "a cell for each column");
    PF_CHECK(table->line() > line, "rows come in the order of their lines");
    line = table->line();
  }
}

}  // namespace
}  // namespace pinfeed

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): libFuzzer wants the function outside
  if (size == 0) return 0;
  const Bytes file({data + 1, size - 1});
  const Status status = ReadTable(file, static_cast<TableKind>(data[0] % 3));
  PF_CHECK(status.ok() || status.message().find("line ") != std::string::npos, "an error names a line");
  return 0;
}
