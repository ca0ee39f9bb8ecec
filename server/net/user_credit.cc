// SPDX-License-Identifier: Apache-2.0
#include "server/net/user_credit.h"

#include <algorithm>

namespace pinfeed {

void UserCredit::Count(Clock::time_point now) {
  credit_ = std::min(kMaxCredit,
                     credit_ + kCreditPerSecond * std::chrono::duration<double>(now - counted_at_).count());
  counted_at_ = now;
}

bool UserCredit::TryTake(uint32_t cost, Clock::time_point now) {
  if (anyone_waiting()) return false;
  Count(now);
  if (credit_ < cost) return false;
  credit_ -= cost;
  return true;
}

void UserCredit::Enqueue(Id id, uint32_t cost, bool is_new) {
  (is_new ? new_connections_ : established_).emplace_back(id, std::max(cost, kGrant));
}

void UserCredit::Remove(Id id) {
  for (Waiting* const queue : {&new_connections_, &established_})
    std::erase_if(*queue, [id](const auto& item) { return item.first == id; });
}

std::optional<std::pair<UserCredit::Id, uint32_t>> UserCredit::NextGrant(Clock::time_point now) {
  Count(now);
  if (!anyone_waiting() || credit_ <= 0) return std::nullopt;
  if (new_connections_.empty() || established_.empty()) new_connections_lead_ = 0;
  const bool is_fresh = established_.empty() || (!new_connections_.empty() && new_connections_lead_ <= 0);
  Waiting& queue = is_fresh ? new_connections_ : established_;
  const std::pair<Id, uint32_t> next = queue.front();
  queue.pop_front();
  credit_ -= next.second;
  new_connections_lead_ += is_fresh ? next.second : -static_cast<double>(next.second);
  return next;
}

bool UserCredit::full(Clock::time_point now) {
  Count(now);
  return credit_ >= kMaxCredit;
}

}  // namespace pinfeed
