// SPDX-License-Identifier: Apache-2.0
// Numbers and tables for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pinfeed {

// "3.70 GB/s", "12.5 MB/s", "800 B/s": powers of 1000, as disks and links have them.
std::string ByteRate(double bytes_per_second);
// "850 ms", "12.3 s", "3 min 20 s", "2 h 5 min", "4 d 3 h"
std::string Duration(double seconds);
// "12.3 us"
std::string Micros(double nanoseconds);
// "1234567" -> "1,234,567"
std::string Count(uint64_t count);
// "1 row", "1,234 rows"
std::string Counted(uint64_t count, const char* what);
// 0.42 -> "42%"
std::string Percent(double share);
// With `digits` behind the point.
std::string Fixed(double value, int digits);
// See EscapeUnprintable: names come from disks and from other users' processes.
std::string Printable(std::string_view text);

// Purpose: rows of text in columns as wide as their widest cell. The first row is the heading. A value; one
// thread.
class Table {
 public:
  void Add(std::vector<std::string> row);
  void Print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace pinfeed
