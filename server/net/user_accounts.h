// SPDX-License-Identifier: Apache-2.0
// What each user uses of a guard, over all connections of that user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "server/net/user_credit.h"

namespace pinfeed {

// The usage of one user, who is a local uid or the names in a TLS certificate.
struct UserAccount {
  using Clock = UserCredit::Clock;

  std::string who;
  UserCredit credit{Clock::now()};
  size_t connections = 0;
  size_t descriptors = 0;  // used by these connections, here and in gRPC
  size_t calls = 0;
  uint64_t message_bytes = 0;              // of these calls
  Clock::time_point next_warning_at = {};  // no earlier warning that the user is slowed down
};

// Purpose: finds a user's account, and hands out credit to all of them. Owns: the accounts, with the
// connections that are charged to them. Threads: one at a time. Errors: none.
class UserAccounts {
 public:
  using Clock = UserCredit::Clock;

  std::shared_ptr<UserAccount> Of(const std::string& who);
  // Calls `grant` for each connection that may continue. Returns whether others still wait.
  bool GrantCredit(Clock::time_point now, const std::function<void(UserCredit::Id, uint32_t credit)>& grant);
  // Forgets accounts without connections. An account stays until its credit is full again, so that
  // reconnecting gains a user nothing.
  void ForgetUnused(Clock::time_point now);

 private:
  std::map<std::string, std::shared_ptr<UserAccount>> accounts_;
};

}  // namespace pinfeed
