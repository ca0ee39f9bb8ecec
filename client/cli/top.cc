// SPDX-License-Identifier: Apache-2.0
// `pinfeed top`: a live terminal view of sessions, what each waits for, workers, pool and GPUs.
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/text.h"
#include "client/cli/top_screen.h"
#include "common/os/poll_timeout.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastInterval = 0.2;
constexpr double kMaxInterval = 60;

// Purpose: puts the terminal into drawing mode: alternate screen, no cursor, keys without Enter. Errors: the
// constructor's. Invariant: the destructor restores the terminal.
class Terminal {
 public:
  Terminal() {
    if (::isatty(STDOUT_FILENO) == 0 || ::tcgetattr(STDIN_FILENO, &before_) != 0)
      throw UsageError("stdout is not a terminal, which top needs; `pinfeed status` shows the same once");
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    std::fputs("\x1b[?1049h\x1b[?25l", stdout);
  }
  ~Terminal() {
    std::fputs("\x1b[?25h\x1b[?1049l", stdout);
    std::fflush(stdout);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  static winsize Size() {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
      size.ws_col = 80;
      size.ws_row = 24;
    }
    return size;
  }
  static void Draw(const std::vector<std::string>& lines) {
    std::fputs("\x1b[H", stdout);
    for (size_t i = 0; i < lines.size(); ++i) std::printf("%s%s\x1b[K", i == 0 ? "" : "\n", lines[i].c_str());
    std::fputs("\x1b[J", stdout);
    std::fflush(stdout);
  }
  // Whether the user pressed q or closed the terminal.
  static bool WantsToQuit(Clock::time_point until) {
    while (!WasInterrupted()) {
      if (Clock::now() >= until) return false;
      pollfd wait{STDIN_FILENO, POLLIN, 0};
      if (::poll(&wait, 1, PollTimeout(until)) <= 0) continue;
      char key = 0;
      if (::read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q') return true;
    }
    throw Interrupted();
  }

 private:
  termios before_{};
};

// Shows an error, as far as it fits, above what is done about it.
std::vector<std::string> Wrapped(const std::string& text, const winsize& size) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size() && lines.size() + 1 < size.ws_row; at += size.ws_col)
    lines.push_back(text.substr(at, size.ws_col));
  lines.push_back(std::string("trying again. q quits").substr(0, size.ws_col));
  return lines;
}

void RunTop(double interval, ToolContext& context) {
  ChooseDaemon(context);
  const auto pause = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(interval));
  Json before;
  Json now = Json::parse(StatusJson(context.address));  // an unreachable daemon is an error at the start
  Clock::time_point looked = Clock::now();
  double seconds = 0;
  std::string failure;  // of the latest look
  const Terminal terminal;
  while (true) {
    const winsize size = Terminal::Size();
    Terminal::Draw(failure.empty() ? TopScreen(before, now, seconds, size.ws_col, size.ws_row)
                                   : Wrapped(failure, size));
    if (Terminal::WantsToQuit(Clock::now() + pause)) return;
    try {
      Json next = Json::parse(StatusJson(context.address));
      before = std::exchange(now, std::move(next));
      const Clock::time_point at = Clock::now();
      seconds = std::chrono::duration<double>(at - std::exchange(looked, at)).count();
      // Counters of a restarted daemon cannot be compared with the earlier ones.
      if (UintField(before, "server_epoch") != UintField(now, "server_epoch")) before = Json();
      failure.clear();
    } catch (const Error& error) {
      failure = Printable(error.what());
    }
  }
}

}  // namespace

void AddTopCommand(CLI::App& tool, ToolContext& context) {
  CLI::App* command = tool.add_subcommand(
      "top", "Shows a live view of sessions and what each waits for, workers, pool and GPUs. q quits.");
  const auto interval = std::make_shared<double>(1);
  command->add_option("--interval", *interval, "seconds between updates")
      ->capture_default_str()
      ->check(Within(kLeastInterval, kMaxInterval));
  command->callback([interval, &context] { RunTop(*interval, context); });
}

}  // namespace pinfeed
