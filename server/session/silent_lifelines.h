// SPDX-License-Identifier: Apache-2.0
// Lifelines that have not said hello: anybody who is served can make them, and each costs a descriptor. In:
// connections as they come. Out: which of them has to go.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace pinfeed {

// Purpose: bounds silent connections, of one user and of all. Threads: one. Errors: none. Invariants: 1. who
// goes is the oldest of the user that has the most, so that a user's flood takes nothing from another; 2. a
// new connection is never the one that goes: who says hello at once is heard.
class SilentLifelines {
 public:
  SilentLifelines(size_t max_per_user, size_t max_total)
      : max_per_user_(max_per_user), max_total_(max_total) {}

  // `id` is larger than all before it. What is returned is out already.
  std::optional<uint64_t> Add(uid_t uid, uint64_t id);
  // It said hello or is gone; nothing when it is out already.
  void Remove(uid_t uid, uint64_t id);
  size_t size() const { return size_; }

 private:
  const size_t max_per_user_;
  const size_t max_total_;
  size_t size_ = 0;
  std::map<uid_t, std::set<uint64_t>> users_;  // that have some
};

}  // namespace pinfeed
