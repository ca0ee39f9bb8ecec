// SPDX-License-Identifier: Apache-2.0
// How far a command has come, on the terminal.
#pragma once

#include <chrono>
#include <string>

namespace pinfeed {

// Purpose: a line on the terminal that is written over; nothing when stderr is none. A value; one thread.
class ProgressBar {
 public:
  ProgressBar();
  // `share` from 0 to 1. Cheap: the terminal sees a few a second.
  void Show(double share, const std::string& text);
  void Clear() const;

 private:
  const bool on_terminal_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace pinfeed
