// SPDX-License-Identifier: Apache-2.0
// A compact list of names.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace pinfeed {

// Purpose: a list of names with an overhead of 4 bytes per name. Threads: built by one thread; const methods
// from any thread afterwards. Invariant: ends_ ascends; name i is names_[ends_[i - 1] .. ends_[i]).
class PackedNames {
 public:
  static constexpr uint64_t kMaxBytes = std::numeric_limits<uint32_t>::max();  // the maximum of bytes()

  // Precondition: bytes() + name.size() <= kMaxBytes.
  void Add(std::string_view name) {
    names_ += name;
    ends_.push_back(static_cast<uint32_t>(names_.size()));
  }
  // Replaces all names. Precondition: together they have at most kMaxBytes.
  void Assign(const std::vector<std::string_view>& names) {
    size_t bytes = 0;
    for (const std::string_view name : names) bytes += name.size();
    names_.clear();
    ends_.clear();
    names_.reserve(bytes);
    ends_.reserve(names.size());
    for (const std::string_view name : names) Add(name);
  }
  // Adds the names of another list. Precondition as for Add.
  void Append(const PackedNames& other) {
    const auto offset = static_cast<uint32_t>(names_.size());
    names_ += other.names_;
    for (const uint32_t end : other.ends_) ends_.push_back(offset + end);
  }
  void Reserve(uint64_t names, uint64_t bytes) {
    ends_.reserve(names);
    names_.reserve(bytes);
  }
  uint64_t size() const { return ends_.size(); }
  uint64_t bytes() const { return names_.size(); }
  // What so many names take in memory.
  static constexpr uint64_t MemoryOf(uint64_t names, uint64_t bytes) {
    return names * sizeof(uint32_t) + bytes;
  }
  // Valid until the next Add.
  std::string_view operator[](uint64_t i) const {
    const uint32_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(names_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string names_;
  std::vector<uint32_t> ends_;
};

}  // namespace pinfeed
