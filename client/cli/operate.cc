// SPDX-License-Identifier: Apache-2.0
// `pinfeed drain`, `evict`, `reload`, `logs` and `cache`: commands for operators. The daemon checks who may
// use them.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/json_field.h"
#include "client/cli/text.h"
#include "common/base/byte_size.h"
#include "common/base/parse_number.h"
#include "common/base/unique_handle.h"
#include "common/os/tcp_address.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

constexpr int kLookMs = 200;
constexpr double kEndPatienceSeconds = 10;  // after the drain

Json Call(const ToolContext& context, const char* method, const Json& request) {
  return Json::parse(AdminJson(method, request.dump(), context.address));
}

// Opens the daemon's process before it is told to end: its pid may be reused afterwards.
UniqueFd ProcessOf(const ToolContext& context) {
  const char* const environment = std::getenv("PINFEED_ADDRESS");
  if (IsTcpAddress(!context.address.empty() || environment == nullptr ? context.address : environment)) {
    throw UsageError(
        "--wait watches the daemon's process, so it works on the daemon's host only; drain without --wait");
  }
  const auto pid = static_cast<pid_t>(UintField(Json::parse(StatusJson(context.address)), "pid"));
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (process) return process;
  throw ToolError("--wait: open the daemon's process " + std::to_string(pid) + ": " + std::strerror(errno) +
                  "; --wait works in the daemon's PID namespace only. Nothing was done");
}

// Says so once if it takes longer than `seconds`.
void AwaitEnd(const UniqueFd& process, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  pollfd wait{process.get(), POLLIN, 0};
  bool told = false;
  while (!WasInterrupted()) {
    if (::poll(&wait, 1, kLookMs) > 0) return;
    if (told || std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(seconds)) continue;
    told = true;
    std::fprintf(
        stderr,
        "the daemon has not ended after %s, though its drain timeout is over: something keeps it, "
        "such as a disk or a GPU that does not answer. It ends itself 30 s after the drain, unless its "
        "process is stopped or waits in the kernel (state T or D in `ps -L`); its log says more\n",
        Duration(seconds).c_str());
  }
  throw Interrupted();  // the daemon keeps draining
}

void RunDrain(bool wait, const ToolContext& context) {
  const UniqueFd process = wait ? ProcessOf(context) : UniqueFd();
  const Json answer = Call(context, "Drain", Json::object());
  const double timeout = DoubleField(answer, "drain_timeout_seconds");
  std::printf("draining: %s to leave, at most %s\n",
              Counted(UintField(answer, "sessions"), "session").c_str(), Duration(timeout).c_str());
  if (!wait) return;
  std::fflush(stdout);
  AwaitEnd(process, timeout + kEndPatienceSeconds);
  std::puts("the daemon has ended");
}

void RunEvict(uint64_t session, const std::string& reason, const ToolContext& context) {
  const Json answer = Call(context, "Evict", {{"session", std::to_string(session)}, {"reason", reason}});
  std::printf("evicted %s\n", Printable(TextField(answer, "session")).c_str());
  if (const uint64_t held = UintField(answer, "batches_held"); held > 0) {
    std::printf(
        "it still holds %s of its group: they come back once it releases them, at the latest when its "
        "process ends\n",
        Counted(held, "batch").c_str());
  }
}

void PrintList(const Json& answer, const char* field, const char* title) {
  const Json& items = ListField(answer, field);
  if (items.empty()) return;
  std::puts(title);
  for (const Json& item : items) std::printf("  %s\n", Printable(item.get<std::string>()).c_str());
}

void RunReload(const ToolContext& context) {
  const Json answer = Call(context, "Reload", Json::object());
  if (ListField(answer, "changed").empty())
    std::puts(ListField(answer, "need_restart").empty() ? "loaded: nothing changed"
                                                        : "loaded: no change takes effect now");
  PrintList(answer, "changed", "loaded, in force now:");
  PrintList(answer, "need_restart", "waits for a restart:");
  PrintList(answer, "warnings", "loaded as it is, but:");
}

void RunLogs(const std::string& level, const ToolContext& context) {
  const Json answer = Call(context, "SetLogLevel", {{"level", level}});
  std::printf("log level %s (was %s), until the daemon restarts or loads its configuration again\n",
              level.c_str(), Printable(TextField(answer, "before")).c_str());
}

void RunCacheDrop(const ToolContext& context) {
  const Json answer = Call(context, "DropCache", Json::object());
  std::printf("dropped %s, %s\n", Counted(UintField(answer, "entries"), "decoded image").c_str(),
              ByteSize(UintField(answer, "bytes")).c_str());
}

}  // namespace

void AddOperatorCommands(CLI::App& tool, ToolContext& context) {
  CLI::App* drain = tool.add_subcommand("drain",
                                        "Ends the daemon as SIGTERM does: trainers take the published "
                                        "batches, leave, and reconnect to the next daemon.");
  const auto wait = std::make_shared<bool>(false);
  drain->add_flag("--wait", *wait, "wait until the daemon has ended");
  drain->callback([wait, &context] { RunDrain(*wait, context); });

  CLI::App* evict =
      tool.add_subcommand("evict", "Ends a session; its trainer gets an error instead of batches.");
  const auto session = std::make_shared<uint64_t>(0);
  const auto reason = std::make_shared<std::string>();
  evict->add_option("session", *session, "the session's number: column SESSION of `pinfeed status`")
      ->required()
      ->type_name("SESSION")
      ->check([](const std::string& text) -> std::string {
        if (ParseNumber<uint64_t>(text).value_or(0) > 0) return {};
        return Printable(text) + " is not a session number; see the column SESSION of `pinfeed status`";
      });
  evict->add_option("--reason", *reason, "shown to the trainer and in the daemon's log")->type_name("TEXT");
  evict->callback([session, reason, &context] { RunEvict(*session, *reason, context); });

  CLI::App* reload = tool.add_subcommand(
      "reload",
      "Makes the daemon load its configuration again, as SIGHUP does; on an error nothing changes.");
  reload->callback([&context] { RunReload(context); });

  CLI::App* cache = tool.add_subcommand(
      "cache", "Frees the memory of cached decoded images; the cache fills again as samples are read.");
  const auto action = std::make_shared<std::string>();
  cache->add_option("action", *action, "drop: the one there is")
      ->required()
      ->type_name("ACTION")
      ->check(CLI::IsMember({"drop"}));
  // It is not used, but has to live until the arguments are parsed.
  cache->callback([action, &context] { RunCacheDrop(context); });

  CLI::App* logs = tool.add_subcommand("logs", "Sets the daemon's log level.");
  const auto level = std::make_shared<std::string>();
  logs->add_option("--level", *level, "trace, debug, info, warning or error")
      ->required()
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}));
  logs->callback([level, &context] { RunLogs(*level, context); });
}

}  // namespace pinfeed
