// SPDX-License-Identifier: Apache-2.0
// A real pinfeedd process for integration tests: watched by pidfd, ended with the test; and other programs
// run against it.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/base/unique_handle.h"
#include "tests/support/testing.h"

namespace pinfeed {

// Purpose: one daemon. Owns: the process, its socket directory and its log. At the end it is asked to stop
// unless the test has seen its end: a daemon that does not end by itself with status 0 (that is also how a
// sanitizer shows what it found) fails the test. Sessions that the test still has are waited for as long as
// --drain-timeout says. Threads: one. Errors: of the harness (no such binary) end the test program; those of
// the daemon are the test's matter.
class DaemonProcess {
 public:
  // Starts the daemon with --socket-dir and --index-dir of its own, no HTTP, a pool of 64 MiB, 2 workers, and
  // then `arguments`, of which the last wins. `wrapper` is put before the command line, such as {"prlimit",
  // "--nofile=40"}.
  explicit DaemonProcess(std::vector<std::string> arguments = {}, std::vector<std::string> wrapper = {});
  // Started with its sockets in `directory`, which is its only allowed root, and a pool of 256 MiB. A daemon
  // that does not get ready ends the test program.
  static std::unique_ptr<DaemonProcess> Serve(const std::filesystem::path& directory,
                                              std::vector<std::string> arguments = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Whether clients can connect; false when the daemon ended instead. Waits up to 30 s.
  bool AwaitReady();
  void Signal(int signal) const;
  // The exit code, or 128 + the signal that ended it. Waits up to 45 s, then kills it and gives -1.
  int AwaitExit();
  // SIGTERM and AwaitExit.
  int Stop();
  // SIGKILL and AwaitExit: for a test of what happens then.
  void Kill();

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

struct ProgramResult {
  int exit_status = -1;  // 128 + signal when one ended it
  std::string output;    // stdout and stderr
};
// Runs a program to its end, with PINFEED_ADDRESS set.
ProgramResult RunProgram(const std::vector<std::string>& command, const std::string& address);

// A flat file of `count` uint16 tokens 0, 1, 2, ... (modulo 65536).
std::filesystem::path WriteTokens(const TempDir& directory, size_t count);

}  // namespace pinfeed
