// SPDX-License-Identifier: Apache-2.0
// Collects everything that is wrong with a message.
#pragma once

#include <string>

#include "common/base/status.h"

namespace pinfeed {

// Purpose: collects faults, so that a user can fix a spec in one pass. Threads: one.
class Faults {
 public:
  void Add(const std::string& field, const std::string& reason) {
    if (++count_ > kMaxNamed) return;
    if (!text_.empty()) text_ += '\n';
    text_ += field + ": " + reason;
  }
  bool empty() const { return count_ == 0; }

  Status ToStatus() const {
    if (empty()) return OkStatus();
    return InvalidArgument(
        count_ <= kMaxNamed ? text_ : text_ + "\nand " + std::to_string(count_ - kMaxNamed) + " more faults");
  }

 private:
  static constexpr size_t kMaxNamed = 32;

  size_t count_ = 0;
  std::string text_;  // of those that are named
};

}  // namespace pinfeed
