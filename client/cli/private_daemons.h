// SPDX-License-Identifier: Apache-2.0
// Private daemons: those that the Python package starts for one trainer, where no common one serves it. In:
// the processes of this user. Out: where their sockets are.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace pinfeed {

struct PrivateDaemon {
  pid_t trainer = 0;    // the process that started it, and that it ends with
  std::string command;  // that process's command line, for people
  std::string address;
};

// Those of user `uid` that run now, by trainer. Found by their command lines, so that neither TMPDIR nor
// XDG_RUNTIME_DIR need be the trainer's, and nothing is left of a daemon that was killed. A socket that lies
// in another user's folder, or in one that others can write to, is passed over.
std::vector<PrivateDaemon> FindPrivateDaemons(uid_t uid, const std::string& proc = "/proc");

// "pid 12 (python3 train.py): --address /tmp/pinfeed-x/pinfeed.sock"
std::string Describe(const PrivateDaemon& daemon);

}  // namespace pinfeed
