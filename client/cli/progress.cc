// SPDX-License-Identifier: Apache-2.0
#include "client/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kPause{100};
constexpr double kWidth = 30;

}  // namespace

ProgressBar::ProgressBar() : on_terminal_(::isatty(STDERR_FILENO) == 1) {}

void ProgressBar::Show(double share, const std::string& text) {
  if (!IsDue()) return;
  next_ = std::chrono::steady_clock::now() + kPause;
  const auto filled = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kWidth);
  std::string bar(filled, '#');
  bar.resize(static_cast<size_t>(kWidth), '.');
  std::fprintf(stderr, "\r[%s] %s\033[K", bar.c_str(), text.c_str());
}

void ProgressBar::Clear() const {
  if (on_terminal_) std::fprintf(stderr, "\r\033[K");
}

}  // namespace pinfeed
