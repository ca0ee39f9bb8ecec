// SPDX-License-Identifier: Apache-2.0
// Checks that descriptors are left for another session. In: the limits. Out: a refusal, while the daemon can
// still accept connections and send it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/result.h"
#include "server/net/user_counts.h"

namespace pinfeed {

// Returns kResourceExhausted, with the numbers, if another session would use descriptors that connections
// need. Calls `count_open`, which lists a directory, only if `max_sessions` sessions could use up `max_fds`.
Status CheckDescriptorRoom(uint32_t max_sessions, uint64_t max_fds,
                           const std::function<uint32_t()>& count_open);

// Whether the newest descriptor of a connection is one of the last, which are left to the files of samples:
// half of what connections have of their own. Without them, good samples could not be read, and would count
// as bad.
bool IsLeftToFiles(int fd, uint64_t max_fds);
// The same for the descriptor of a connection that waits at a listener, if one does.
bool NextIsLeftToFiles(int listener);
// The limit on the descriptors of this process.
uint64_t DescriptorLimit();

// The same for what a producer or a batcher's process takes beside sessions: `fd` is its newest descriptor.
// Leaves a quarter of all to sessions and other connections.
Status CheckConnectionRoom(int fd, const std::string& who_takes_how_many,
                           uint64_t max_fds = DescriptorLimit());

// Purpose: counts the descriptors that such processes of each user take, so that one user leaves half of what
// they may have to the others. Threads: any.
class ConnectionRoom {
 public:
  using Taken = UserCounts::Counted;

  // `count` descriptors of `user`; the rest as CheckConnectionRoom, which looks at those of all users.
  Result<Taken> Take(uid_t user, uint64_t count, const std::string& who_takes_how_many,
                     uint64_t max_fds = DescriptorLimit());

 private:
  UserCounts users_;
};

}  // namespace pinfeed
