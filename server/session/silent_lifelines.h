// SPDX-License-Identifier: Apache-2.0
// Limits connections that have not sent a hello, since any served user can open them and each takes a
// descriptor. In: new connections. Out: which one to close.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace pinfeed {

// Purpose: limits silent connections, per user and in total. Threads: one. Errors: none. Invariants: 1. at
// the total limit, the oldest connection of the user with the most is closed, so that a flood harms only its
// own user; 2. a new connection is never closed, so that a client that sends its hello at once is served.
class SilentLifelines {
 public:
  SilentLifelines(size_t max_per_user, size_t max_total)
      : max_per_user_(max_per_user), max_total_(max_total) {}

  // Returns the connection to close, which is removed already. Precondition: `id` is larger than all before.
  std::optional<uint64_t> Add(uid_t uid, uint64_t id);
  // Call when the connection has sent its hello or is closed. Does nothing if it was removed already.
  void Remove(uid_t uid, uint64_t id);
  size_t size() const { return size_; }

 private:
  const size_t max_per_user_;
  const size_t max_total_;
  size_t size_ = 0;
  std::map<uid_t, std::set<uint64_t>> users_;  // users with silent connections
};

}  // namespace pinfeed
