// SPDX-License-Identifier: Apache-2.0
// Shows a command's progress on the terminal.
#pragma once

#include <chrono>
#include <string>

namespace pinfeed {

// Purpose: a terminal line that is overwritten. Prints nothing if stderr is not a terminal. Copyable.
// Threads: one.
class ProgressBar {
 public:
  ProgressBar();
  // Whether Show would draw: it does a few times a second only.
  bool IsDue() const { return on_terminal_ && std::chrono::steady_clock::now() >= next_; }
  // `share` is from 0 to 1.
  void Show(double share, const std::string& text);
  void Clear() const;

 private:
  const bool on_terminal_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace pinfeed
