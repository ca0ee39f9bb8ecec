// SPDX-License-Identifier: Apache-2.0
// The report of `pinfeed doctor`, and the checks that fill it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/cli/json_field.h"

namespace pinfeed {

// The result of one check.
struct Finding {
  enum class State {
    kFine,
    kNote,    // pinfeed works, with a limitation that the text names
    kBroken,  // pinfeed cannot work
  };
  State state = State::kFine;
  std::string what;  // the subject of the check, such as "GPU"
  std::string text;  // what was found
};

struct DoctorReport {
  std::vector<Finding> findings;
  Json host;    // the host's limits, as numbers
  Json daemon;  // pinfeed.v1.GetStatusResponse, or null
  Json gpus = Json::array();
  // Answers to questions such as "Does pinning pay here?", one or more sentences each.
  std::vector<std::string> answers;

  void Fine(std::string what, std::string text) {
    findings.push_back({Finding::State::kFine, std::move(what), std::move(text)});
  }
  void Note(std::string what, std::string text) {
    findings.push_back({Finding::State::kNote, std::move(what), std::move(text)});
  }
  void Broken(std::string what, std::string text) {
    findings.push_back({Finding::State::kBroken, std::move(what), std::move(text)});
  }
};

// Called with the progress, from 0 to 1, and the current step. May throw Interrupted
// (client/cli/interrupt.h).
using DoctorProgress = std::function<void(double share, const std::string& what)>;

// Checks the kernel, memory and limits.
void ExamineHost(DoctorReport& report);
// Checks the daemon at the address.
void ExamineDaemon(const std::string& address, DoctorReport& report);
// Checks for every GPU whether its memory can be shared with another process and how fast copies are. For the
// first GPU, also measures the table of copies that copy_bench.h describes.
void ExamineGpus(DoctorReport& report, const DoctorProgress& progress);
// Returns the table of copies as an SVG bar chart; empty without a GPU.
std::string PlotCopies(const DoctorReport& report);

// A probe tests whether GPU memory can be shared: the doctor writes a mark to GPU memory, and a second
// process maps the memory and looks for the mark. ProbedMemory is what the second process gets on its command
// line.
struct ProbedMemory {
  std::string backend;  // "vmm-fd" or "cuda-ipc"
  int fd = -1;          // descriptor of the memory (vmm-fd), or of a pipe that holds its handle (cuda-ipc)
  std::string gpu_uuid;
  uint64_t bytes = 0;
  uint64_t mark = 0;  // at the start of the memory
};
// The main function of the second process. Prints errors to stderr and returns the exit status.
int Probe(const ProbedMemory& probed);

}  // namespace pinfeed
