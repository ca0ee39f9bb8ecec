// SPDX-License-Identifier: Apache-2.0
// A real pinfeedd process for integration tests: started in a directory of its own, watched by pidfd, ended
// with the test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/unique_handle.h"
#include "tests/testing.h"

namespace pinfeed {

// Purpose: one daemon. Owns: the process (killed if it still runs at the end), its socket directory and its
// log. Threads: one. Errors: of the harness (no such binary) end the test program; those of the daemon are
// the test's matter.
class DaemonProcess {
 public:
  // Starts the daemon with --socket-dir of its own, no HTTP, a pool of 64 MiB, 2 workers, and then
  // `arguments`, which win. `wrapper` is put before the command line, such as {"prlimit", "--nofile=40"}.
  explicit DaemonProcess(std::vector<std::string> arguments = {}, std::vector<std::string> wrapper = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Whether clients can connect; false when the daemon ended instead. Waits up to 30 s.
  bool AwaitReady();
  void Signal(int signal) const;
  // The exit code, or 128 + the signal that ended it. Waits up to 30 s, then kills it and gives -1.
  int AwaitExit();

  pid_t pid() const { return pid_; }
  std::filesystem::path socket_dir() const { return directory_ / "run"; }
  std::string rpc_path() const { return socket_dir() / "pinfeed.sock"; }
  std::string lifeline_path() const { return socket_dir() / "lifeline.sock"; }
  // What it wrote to stderr so far.
  std::string Log() const;

 private:
  TempDir directory_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd ready_;
  bool reaped_ = false;
};

}  // namespace pinfeed
