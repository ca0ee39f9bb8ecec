// SPDX-License-Identifier: Apache-2.0
// Sources in this process's memory as one sequence of bytes, which threads read piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pinfeed {

// What is to be copied: `bytes` of a source, then zeros up to `span`, to an address of the GPU.
struct HostCopy {
  const std::byte* source = nullptr;
  uint64_t bytes = 0;
  uint64_t target = 0;
  uint64_t span = 0;  // >= bytes
};

// A part of the sequence, and where it goes.
struct TargetRange {
  uint64_t target = 0;
  uint64_t offset = 0;  // from the begin of what was asked for
  uint64_t bytes = 0;
};

// Purpose: the bytes of several copies, one after the other. Borrows the sources. Threads: any while nothing
// is added. Precondition: the spans' sum fits in 64 bits; of the functions, begin <= end <= size().
class StagedBytes {
 public:
  void Add(const HostCopy& copy);
  uint64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  // Writes [begin, end) of the sequence to `out`.
  void Read(uint64_t begin, uint64_t end, std::byte* out) const;
  // Where [begin, end) goes. Copies whose targets follow each other are one range.
  std::vector<TargetRange> Targets(uint64_t begin, uint64_t end) const;

 private:
  // Calls `visit` with each copy in [begin, end), and with what is skipped of its span and how much follows.
  template <typename Visit>
  void ForEach(uint64_t begin, uint64_t end, Visit visit) const;

  std::vector<HostCopy> copies_;
  std::vector<uint64_t> ends_;  // of each copy, in the sequence
};

}  // namespace pinfeed
