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
    if (!text_.empty()) text_ += '\n';
    text_ += field + ": " + reason;
  }
  Status ToStatus() const { return text_.empty() ? OkStatus() : InvalidArgument(text_); }

 private:
  std::string text_;
};

}  // namespace pinfeed
