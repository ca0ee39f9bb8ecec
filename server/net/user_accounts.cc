// SPDX-License-Identifier: Apache-2.0
#include "server/net/user_accounts.h"

namespace pinfeed {

std::shared_ptr<UserAccount> UserAccounts::Of(const std::string& who) {
  std::shared_ptr<UserAccount>& account = accounts_[who];
  if (account == nullptr) {
    account = std::make_shared<UserAccount>();
    account->who = who;
  }
  return account;
}

bool UserAccounts::GrantCredit(Clock::time_point now,
                               const std::function<void(UserCredit::Id, uint32_t credit)>& grant) {
  bool anyone_waiting = false;
  for (const auto& [who, account] : accounts_) {
    while (const auto next = account->credit.NextGrant(now)) grant(next->first, next->second);
    anyone_waiting = anyone_waiting || account->credit.anyone_waiting();
  }
  return anyone_waiting;
}

void UserAccounts::ForgetUnused(Clock::time_point now) {
  std::erase_if(accounts_, [now](const auto& item) {
    return item.second.use_count() == 1 && item.second->credit.full(now);
  });
}

}  // namespace pinfeed
