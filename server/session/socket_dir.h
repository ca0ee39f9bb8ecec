// SPDX-License-Identifier: Apache-2.0
// The directory of the sockets, held by one daemon at a time.
#pragma once

#include <string>

#include "common/result.h"
#include "common/unique_handle.h"

namespace pinfeed {

// Purpose: the right to use a socket directory. Owns: the flock on DIR/pinfeedd.lock, which the kernel drops
// when the process ends. Threads: a value. Errors: Lock says what is wrong with the directory, or which
// process holds it.
class SocketDir {
 public:
  static Result<SocketDir> Lock(const std::string& directory);

  std::string rpc_path() const { return directory_ + "/pinfeed.sock"; }
  std::string lifeline_path() const { return directory_ + "/lifeline.sock"; }
  std::string http_port_path() const { return directory_ + "/http.port"; }

 private:
  SocketDir(std::string directory, UniqueFd lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}
  std::string directory_;
  UniqueFd lock_;
};

}  // namespace pinfeed
