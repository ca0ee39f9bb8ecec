// SPDX-License-Identifier: Apache-2.0
// What the parts of `pinfeed doctor` agree on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/cli/json_field.h"

namespace pinfeed {

// One thing that was looked at. kBroken: pinfeed cannot do what it is there for.
struct Finding {
  enum class State { kFine, kNote, kBroken };
  State state = State::kFine;
  std::string what;
  std::string text;
};

struct DoctorReport {
  std::vector<Finding> findings;
  Json host;    // limits, in numbers
  Json daemon;  // pinfeed.v1.GetStatusResponse, or null
  Json gpus = Json::array();
  std::vector<std::string> answers;  // in words

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

// How far it has come, 0 to 1, and with what. Throws Interrupted.
using DoctorProgress = std::function<void(double share, const std::string& what)>;

// Kernel, memory, limits.
void ExamineHost(DoctorReport& report);
void ExamineDaemon(const std::string& address, DoctorReport& report);
// Every GPU: whether its memory can be shared with another process, how fast copies are; of the first one
// the table of copy_bench.h.
void ExamineGpus(DoctorReport& report, const DoctorProgress& progress);
// The bars of that table, as SVG; empty without a GPU.
std::string PlotCopies(const DoctorReport& report);

// What another process has to map.
struct ProbedMemory {
  std::string backend;  // "vmm-fd", "cuda-ipc"
  int fd = -1;          // of the memory, or of a pipe that holds its handle
  std::string gpu_uuid;
  uint64_t bytes = 0;
  std::string mark;  // what is to be found there, hexadecimal
};
// The other process of a probe. Says on stderr what went wrong; the exit status.
int Probe(const ProbedMemory& probed);

}  // namespace pinfeed
