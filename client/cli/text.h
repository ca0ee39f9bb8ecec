// SPDX-License-Identifier: Apache-2.0
// Formats numbers and tables for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pinfeed {

// Returns "3.70 GB/s", "12.5 MB/s" or "800 B/s": powers of 1000, as for disks and links.
std::string ByteRate(double bytes_per_second);
// Returns "850 ms", "12.3 s", "3 min 20 s", "2 h 5 min" or "4 d 3 h".
std::string Duration(double seconds);
// Returns "12.3 us".
std::string Micros(double nanoseconds);
// Inserts separators: "1234567" becomes "1,234,567".
std::string Count(uint64_t count);
// Returns "1 row" or "1,234 rows".
std::string Counted(uint64_t count, const char* what);
// Returns "42%" for 0.42.
std::string Percent(double share);
// Formats with `digits` decimals.
std::string Fixed(double value, int digits);
// Escapes unprintable characters (EscapeUnprintable): names come from disks and from other users' processes.
std::string Printable(std::string_view text);

// Purpose: rows of text in columns as wide as their widest cell. The first row is the heading. Copyable.
// Threads: one.
class Table {
 public:
  void Add(std::vector<std::string> row);
  void Print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace pinfeed
