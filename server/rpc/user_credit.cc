// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/user_credit.h"

#include <algorithm>

namespace pinfeed {

void UserCredit::Count(Clock::time_point now) {
  credit_ =
      std::min(kMost, credit_ + kIncomeASecond * std::chrono::duration<double>(now - counted_at_).count());
  counted_at_ = now;
}

bool UserCredit::Take(uint32_t price, Clock::time_point now) {
  if (somebody_waits()) return false;
  Count(now);
  if (credit_ < price) return false;
  credit_ -= price;
  return true;
}

void UserCredit::Wait(Id id, uint32_t price, bool is_new) {
  (is_new ? fresh_ : others_).emplace_back(id, std::max(price, kTurn));
}

void UserCredit::Leave(Id id) {
  for (Waiting* const queue : {&fresh_, &others_})
    std::erase_if(*queue, [id](const auto& item) { return item.first == id; });
}

std::optional<std::pair<UserCredit::Id, uint32_t>> UserCredit::NextTurn(Clock::time_point now) {
  Count(now);
  if (!somebody_waits() || credit_ <= 0) return std::nullopt;
  if (fresh_.empty() || others_.empty()) fresh_lead_ = 0;
  const bool is_fresh = others_.empty() || (!fresh_.empty() && fresh_lead_ <= 0);
  Waiting& queue = is_fresh ? fresh_ : others_;
  const std::pair<Id, uint32_t> next = queue.front();
  queue.pop_front();
  credit_ -= next.second;
  fresh_lead_ += is_fresh ? next.second : -static_cast<double>(next.second);
  return next;
}

bool UserCredit::full(Clock::time_point now) {
  Count(now);
  return credit_ >= kMost;
}

}  // namespace pinfeed
