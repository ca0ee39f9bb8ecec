// SPDX-License-Identifier: Apache-2.0
// Shared by the parts of `pinfeed doctor`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/cli/json_field.h"

namespace pinfeed {

// The result of one check. kBroken: pinfeed cannot work.
struct Finding {
  enum class State { kFine, kNote, kBroken };
  State state = State::kFine;
  std::string what;
  std::string text;
};

struct DoctorReport {
  std::vector<Finding> findings;
  Json host;    // limits, as numbers
  Json daemon;  // pinfeed.v1.GetStatusResponse, or null
  Json gpus = Json::array();
  std::vector<std::string> answers;  // sentences

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

// Reports progress, from 0 to 1, and the current step. Throws Interrupted.
using DoctorProgress = std::function<void(double share, const std::string& what)>;

// Checks kernel, memory, limits and the daemon.
void ExamineHost(DoctorReport& report);
void ExamineDaemon(const std::string& address, DoctorReport& report);
// Checks for every GPU whether its memory can be shared with another process and how fast copies are. For the
// first GPU, also measures the table of copy_bench.h.
void ExamineGpus(DoctorReport& report, const DoctorProgress& progress);
// That table as an SVG bar chart. Empty without a GPU.
std::string PlotCopies(const DoctorReport& report);

// The memory that another process maps in a probe.
struct ProbedMemory {
  std::string backend;  // "vmm-fd", "cuda-ipc"
  int fd = -1;          // of the memory, or of a pipe that holds its handle
  std::string gpu_uuid;
  uint64_t bytes = 0;
  std::string mark;  // the bytes expected there, in hexadecimal
};
// Runs the other process of a probe. Prints errors to stderr and returns the exit status.
int Probe(const ProbedMemory& probed);

}  // namespace pinfeed
