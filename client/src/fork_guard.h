// SPDX-License-Identifier: Apache-2.0
// Tells a process from its forked children: a child shares its parent's mappings and sockets, so it must not
// act on them.
#pragma once

#include <atomic>
#include <cstdint>

namespace pinfeed {

// How many forks lie between the library's first use and this process. One relaxed load once initialised.
uint64_t ForkGeneration();

// Purpose: remembers the process that made an object. A value; any thread.
class ForkGuard {
 public:
  bool InOwner() const { return made_in_ == ForkGeneration(); }

 private:
  uint64_t made_in_ = ForkGeneration();
};

}  // namespace pinfeed
