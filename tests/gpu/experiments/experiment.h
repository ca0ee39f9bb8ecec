// SPDX-License-Identifier: Apache-2.0
//
// What every experiment needs on the host side: checked calls, a clock, the report. In: what a program saw.
// Out: one JSON line a finding on standard output, which run.sh turns into a table, and an exit status that
// says whether all held on which pinfeed relies.
#pragma once

#include <cuda.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

namespace pinfeed {

inline std::string CuName(CUresult result) {
  const char* name = nullptr;
  if (result == CUDA_SUCCESS) return "ok";
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS) return std::to_string(result);
  return name;
}

[[noreturn]] inline void Fail(const char* file, int line, const std::string& what, const std::string& why) {
  std::fprintf(stderr, "%s:%d: process %d: %s: %s\n", file, line, getpid(), what.c_str(), why.c_str());
  std::fflush(stderr);
  _exit(3);
}

inline void CheckCu(CUresult result, const char* call, const char* file, int line) {
  if (result != CUDA_SUCCESS) Fail(file, line, call, CuName(result));
}

template <typename T>
T CheckSys(T result, const char* call, const char* file, int line) {
  if (result == T(-1)) Fail(file, line, call, std::strerror(errno));
  return result;
}

// A failure that is no finding ends the process: the experiment could not be made.
#define CU(call) ::pinfeed::CheckCu((call), #call, __FILE__, __LINE__)
#define SYS(call) ::pinfeed::CheckSys((call), #call, __FILE__, __LINE__)

// Seconds of the monotonic clock, which all processes of a host share.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline std::string Number(double value, const char* unit, int digits = 1) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f %s", digits, value, unit);
  return text;
}

inline std::string Gib(double bytes) {
  return Number(bytes / double(1ULL << 30), "GiB", 2);
}

// Findings of one program. Texts are the program's own and hold no character that JSON would escape.
class Report {
 public:
  explicit Report(const char* experiment) : experiment_(experiment) {}

  // Something worth knowing on which nothing rests.
  void Say(const std::string& scenario, const std::string& what, const std::string& seen) {
    Print(scenario, what, seen, "seen");
  }

  // Something on which the GPU path rests.
  void Rely(const std::string& scenario, const std::string& what, const std::string& seen, bool holds) {
    Print(scenario, what, seen, holds ? "holds" : "BROKEN");
    broken_ += holds ? 0 : 1;
  }

  int ExitStatus() const { return broken_ == 0 ? 0 : 1; }

 private:
  void Print(const std::string& scenario, const std::string& what, const std::string& seen,
             const char* verdict) {
    std::printf(R"({"experiment": "%s", "case": "%s", "what": "%s", "seen": "%s", "verdict": "%s"})"
                "\n",
                experiment_, scenario.c_str(), what.c_str(), seen.c_str(), verdict);
    std::fflush(stdout);
  }

  const char* experiment_;
  int broken_ = 0;
};

}  // namespace pinfeed
