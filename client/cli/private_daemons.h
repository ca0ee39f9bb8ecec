// SPDX-License-Identifier: Apache-2.0
// Finds private daemons: those that the Python package starts for one trainer when no system-wide daemon
// serves it. In: the processes of this user. Out: their sockets.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace pinfeed {

struct PrivateDaemon {
  pid_t trainer = 0;    // process that started it; the daemon ends with it
  std::string command;  // that process's command line, for display
  std::string address;
};

// Returns the running private daemons of user `uid`, ordered by trainer. Searches command lines, so it
// depends on neither the trainer's TMPDIR nor its XDG_RUNTIME_DIR, and ignores leftovers of a killed daemon.
// Skips sockets in folders that another user owns or can write to.
std::vector<PrivateDaemon> FindPrivateDaemons(uid_t uid, const std::string& proc = "/proc");

// Returns "pid 12 (python3 train.py): --address /tmp/pinfeed-x/pinfeed.sock".
std::string Describe(const PrivateDaemon& daemon);

}  // namespace pinfeed
