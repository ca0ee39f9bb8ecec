// SPDX-License-Identifier: Apache-2.0
// `pinfeed trace`: records what the daemon and its trainers do, in a file for chrome://tracing and
// ui.perfetto.dev.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>

#include "client/cli/chrome_trace.h"
#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress.h"
#include "client/cli/text.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastTraceSeconds = 0.1;
constexpr double kMaxTraceSeconds = 300;
constexpr uint64_t kMaxSpans = 10'000'000;

struct TraceOptions {
  std::string output = "trace.json";
  double seconds = 5;
  uint64_t max_spans = 1'000'000;
};

// Purpose: pf_trace's callback. Keeps an exception until the C function has returned.
struct Listener {
  explicit Listener(double expected_seconds) : seconds(expected_seconds) {}

  const double seconds;
  const Clock::time_point start = Clock::now();
  ProgressBar bar;
  ChromeTrace trace;
  std::exception_ptr thrown;

  // Returns false to stop the recording.
  bool On(const char* json) {
    if (json != nullptr) {
      trace.Add(Json::parse(json));
      return true;
    }
    const double passed = std::chrono::duration<double>(Clock::now() - start).count();
    bar.Show(passed / seconds, "recording " + Fixed(passed, 1) + " of " + Fixed(seconds, 1) + " s");
    return !WasInterrupted();
  }
  static int Call(const char* json, void* user) {
    auto& self = *static_cast<Listener*>(user);
    try {
      return self.On(json) ? 0 : 1;
    } catch (...) {
      self.thrown = std::current_exception();
      return 1;
    }
  }
};

void WriteFile(const ChromeTrace& trace, const std::string& path) {
  errno = 0;
  std::ofstream file(path, std::ios::trunc);
  if (file) trace.Write(file);
  if (!file.flush())
    throw ToolError("write " + path + ": " + (errno != 0 ? std::strerror(errno) : "it was cut short"));
}

void Report(const ChromeTrace& trace, const TraceOptions& options) {
  std::printf("%s: %s over %s; open it in https://ui.perfetto.dev or chrome://tracing\n",
              Printable(options.output).c_str(), Counted(trace.spans(), "span").c_str(),
              Duration(trace.seconds()).c_str());
  Table table;
  table.Add({"WHAT", "SPANS", "TOGETHER"});
  for (const auto& [kind, total] : trace.Totals())
    table.Add({kind, Count(total.first), Duration(static_cast<double>(total.second) / 1e9)});
  if (trace.spans() > 0) {
    table.Print();
  } else {
    std::puts("recorded nothing: no trainer took batches from a feed that you may see");
  }
  if (trace.full()) std::puts("the recording ended early: --max-spans was reached");
  if (trace.lost() > 0)
    std::printf("%s lost: they came faster than the tool could read them\n",
                Counted(trace.lost(), "span").c_str());
}

void RunTrace(const TraceOptions& options, ToolContext& context) {
  ChooseDaemon(context);
  StatusJson(context.address);  // one that does not answer is told now, and leaves no file
  if (!std::ofstream(options.output, std::ios::app))  // rather than after the recording
    throw ToolError("write " + options.output + ": " + std::strerror(errno));
  Listener listener(options.seconds);
  const Json request = {{"seconds", options.seconds}, {"max_spans", options.max_spans}};
  const pf_result result =
      pf_trace(detail::OrNull(context.address), request.dump().c_str(), &Listener::Call, &listener);
  listener.bar.Clear();
  if (listener.thrown != nullptr) std::rethrow_exception(listener.thrown);
  if (result != PF_OK && listener.trace.spans() > 0) WriteFile(listener.trace, options.output);
  detail::Check(result);
  WriteFile(listener.trace, options.output);
  PrintBeside(options.output);
  Report(listener.trace, options);
  if (WasInterrupted()) context.exit_status = kExitInterrupted;
}

}  // namespace

void AddTraceCommand(CLI::App& tool, ToolContext& context) {
  CLI::App* command = tool.add_subcommand(
      "trace",
      "Records reads, decodes, copies, publishes, trainers' waits and releases, as a file for "
      "ui.perfetto.dev.");
  const auto options = std::make_shared<TraceOptions>();
  command->add_option("-o,--output", options->output, "file to write")->capture_default_str();
  command->add_option("--seconds", options->seconds, "how long to record")
      ->capture_default_str()
      ->check(Within(kLeastTraceSeconds, kMaxTraceSeconds));
  command->add_option("--max-spans", options->max_spans, "end early after this many spans")
      ->capture_default_str()
      ->check(Within(1, kMaxSpans));
  command->callback([options, &context] { RunTrace(*options, context); });
}

}  // namespace pinfeed
