// SPDX-License-Identifier: Apache-2.0
// What the client library warns of.
#pragma once

#include <string>
#include <vector>

#include "pinfeed/pinfeed.h"

namespace pinfeed {

// Collects the library's warnings while it lives.
class LogCapture {
 public:
  LogCapture() { pf_set_log(Collect, this); }
  ~LogCapture() { pf_set_log(nullptr, nullptr); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  std::vector<std::string> lines;

 private:
  static void Collect(pf_log_level /*level*/, const char* message, void* self) {
    static_cast<LogCapture*>(self)->lines.emplace_back(message);
  }
};

}  // namespace pinfeed
