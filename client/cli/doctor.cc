// SPDX-License-Identifier: Apache-2.0
// `pinfeed doctor`: checks what this host can do for pinfeed, and measures whether pinning and overlapping
// pay on it.
#include "client/cli/doctor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress.h"
#include "client/cli/text.h"
#include "common/spec/names.h"

namespace pinfeed {
namespace {

struct DoctorOptions {
  bool json = false;
  std::string plot;
};
const char* StateName(Finding::State state) {
  switch (state) {
    case Finding::State::kFine:
      return "fine";
    case Finding::State::kNote:
      return "note";
    case Finding::State::kBroken:
      return "broken";
  }
  return "unknown";
}

bool IsBroken(const DoctorReport& report) {
  return std::any_of(report.findings.begin(), report.findings.end(),
                     [](const Finding& finding) { return finding.state == Finding::State::kBroken; });
}

Json ToJson(const DoctorReport& report) {
  Json findings = Json::array();
  for (const Finding& finding : report.findings)
    findings.push_back({{"state", StateName(finding.state)}, {"what", finding.what}, {"text", finding.text}});
  return {{"broken", IsBroken(report)}, {"findings", findings}, {"host", report.host},
          {"daemon", report.daemon},    {"gpus", report.gpus},  {"answers", report.answers}};
}

void PrintCopies(const Json& gpu) {
  const Json& copies = ListField(gpu, "copies");
  if (copies.empty()) return;
  std::printf(
      "\nCopies to GPU %llu, in milliseconds for all tensors of a set (the sizes of PyTorch's tutorial on "
      "pinned memory)\n",
      static_cast<unsigned long long>(UintField(gpu, "ordinal")));
  Table table;
  table.Add({"TENSORS", "SOURCE", "BLOCKING", "NOT BLOCKING"});
  for (size_t i = 0; i + 1 < copies.size(); i += 2) {  // pairs of blocking and non-blocking
    table.Add({TextField(copies[i], "tensors"), TextField(copies[i], "source"),
               Fixed(DoubleField(copies[i], "milliseconds"), 3),
               Fixed(DoubleField(copies[i + 1], "milliseconds"), 3)});
  }
  table.Print();
}

void Print(const DoctorReport& report) {
  static constexpr std::array<const char*, 3> kMarks = {"ok    ", "note  ", "BROKEN"};
  size_t widest = 0;
  for (const Finding& finding : report.findings) widest = std::max(widest, finding.what.size());
  for (const Finding& finding : report.findings) {
    std::string what = finding.what;
    what.resize(widest, ' ');
    std::printf("%s  %s  %s\n", kMarks.at(static_cast<size_t>(finding.state)), what.c_str(),
                Printable(finding.text).c_str());
  }
  for (const Json& gpu : report.gpus) PrintCopies(gpu);
  if (!report.answers.empty()) std::puts("");
  for (const std::string& answer : report.answers) std::puts(answer.c_str());
}

void WritePlot(const DoctorReport& report, const std::string& path) {
  const std::string svg = PlotCopies(report);
  if (svg.empty()) {
    throw ToolError("write " + path + ": there is nothing to plot: " +
                    (report.gpus.empty() ? "no GPU was found" : "no copies to a GPU could be measured"));
  }
  errno = 0;
  std::ofstream file(path, std::ios::trunc);
  if (!(file << svg) || !file.flush())
    throw ToolError("write " + path + ": " + (errno != 0 ? std::strerror(errno) : "it was cut short"));
}

void RunDoctor(const DoctorOptions& options, ToolContext& context) {
  ProgressBar bar;
  DoctorReport report;
  ExamineHost(report);
  ExamineDaemon(context.address, report);
  try {
    ExamineGpus(report, [&](double share, const std::string& what) {
      if (WasInterrupted()) throw Interrupted();
      bar.Show(share, what);
    });
  } catch (const Interrupted&) {
    bar.Clear();
    throw;
  }
  bar.Clear();
  if (options.json) {
    std::puts(ToJson(report).dump(2, ' ', true, Json::error_handler_t::replace).c_str());
  } else {
    Print(report);
  }
  if (IsBroken(report)) context.exit_status = kExitFailed;
  if (!options.plot.empty()) WritePlot(report, options.plot);
}

}  // namespace

void AddDoctorCommand(CLI::App& tool, ToolContext& context) {
  CLI::App* command = tool.add_subcommand(
      "doctor",
      "Checks kernel, limits, daemon and GPUs, and measures whether pinning and overlapping pay here. Exit "
      "status: 1 when something that pinfeed needs is broken, or when there is no GPU for --plot to show.");
  const auto options = std::make_shared<DoctorOptions>();
  command->add_flag("--json", options->json, "print the report as JSON");
  command
      ->add_option("--plot", options->plot, "write the times of copies to the first GPU as a bar chart (SVG)")
      ->check([](const std::string& path) {
        const bool svg = path.size() > 4 && path.compare(path.size() - 4, 4, ".svg") == 0;
        return svg ? std::string() : Printable(path) + " must end in .svg, the format that is written";
      });
  command->callback([options, &context] { RunDoctor(*options, context); });

  // The hidden command that `doctor` runs as the other process of a probe.
  CLI::App* probe = tool.add_subcommand("doctor-probe", "")->group("");
  const auto probed = std::make_shared<ProbedMemory>();
  probe->add_option("--backend", probed->backend)
      ->check(CLI::IsMember({BackendName(Backend::kVmmFd), BackendName(Backend::kCudaIpc)}))
      ->required();
  probe->add_option("--fd", probed->fd)->required();
  probe->add_option("--gpu", probed->gpu_uuid)->required();
  probe->add_option("--bytes", probed->bytes)->required();
  probe->add_option("--mark", probed->mark)->required();
  probe->callback([probed, &context] { context.exit_status = Probe(*probed); });
}

}  // namespace pinfeed
