// SPDX-License-Identifier: Apache-2.0
// A real pinfeedd in a process of its own, for the tests; and other programs run against it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/testing.h"

namespace pinfeed {

// Purpose: starts, stops and kills one daemon. Owns: the process; its sockets' directory is `directory`,
// which outlives it. Threads: one. Errors: a daemon that does not start or end as it should ends the test
// program, with the daemon's log on stderr.
class DaemonProcess {
 public:
  // Returns once the daemon says (by sd_notify) that it is ready. `directory` is also its only allowed root.
  explicit DaemonProcess(std::filesystem::path directory, std::vector<std::string> arguments = {});
  // Stops it if it still runs.
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  std::string address() const { return (directory_ / "pinfeed.sock").string(); }
  // SIGTERM, without waiting.
  void BeginStop();
  // Waits for an orderly end.
  void Join();
  // BeginStop and Join.
  void Stop();
  // SIGKILL, then waits.
  void Kill();

 private:
  const std::filesystem::path directory_;
  pid_t pid_ = -1;
};

struct ProgramResult {
  int exit_status = -1;  // 128 + signal when one ended it
  std::string output;    // stdout and stderr
};
// Runs a program to its end, with PINFEED_ADDRESS set.
ProgramResult RunProgram(const std::vector<std::string>& command, const std::string& address);

// A flat file of `count` uint16 tokens 0, 1, 2, ... (modulo 65536).
std::filesystem::path WriteTokens(const TempDir& directory, size_t count);

}  // namespace pinfeed
