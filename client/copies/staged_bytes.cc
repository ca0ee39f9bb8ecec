// SPDX-License-Identifier: Apache-2.0
#include "client/copies/staged_bytes.h"

#include <algorithm>
#include <cstring>

namespace pinfeed {

void StagedBytes::Add(const HostCopy& copy) {
  if (copy.span == 0) return;
  copies_.push_back(copy);
  ends_.push_back(size() + copy.span);
}

template <typename Visit>
void StagedBytes::ForEach(uint64_t begin, uint64_t end, Visit visit) const {
  auto index = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (; begin < end; ++index) {
    const HostCopy& copy = copies_[index];
    const uint64_t skipped = begin - (ends_[index] - copy.span);
    const uint64_t count = std::min(copy.span - skipped, end - begin);
    visit(copy, skipped, count);
    begin += count;
  }
}

void StagedBytes::Read(uint64_t begin, uint64_t end, std::byte* out) const {
  ForEach(begin, end, [&out](const HostCopy& copy, uint64_t skipped, uint64_t count) {
    const uint64_t data = skipped < copy.bytes ? std::min(count, copy.bytes - skipped) : 0;
    if (data != 0) std::memcpy(out, copy.source + skipped, data);
    std::memset(out + data, 0, count - data);
    out += count;
  });
}

std::vector<TargetRange> StagedBytes::Targets(uint64_t begin, uint64_t end) const {
  std::vector<TargetRange> ranges;
  uint64_t offset = 0;
  ForEach(begin, end, [&](const HostCopy& copy, uint64_t skipped, uint64_t count) {
    const uint64_t target = copy.target + skipped;
    if (!ranges.empty() && ranges.back().target + ranges.back().bytes == target) {
      ranges.back().bytes += count;
    } else {
      ranges.push_back({target, offset, count});
    }
    offset += count;
  });
  return ranges;
}

}  // namespace pinfeed
