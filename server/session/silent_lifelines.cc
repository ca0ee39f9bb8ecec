// SPDX-License-Identifier: Apache-2.0
#include "server/session/silent_lifelines.h"

#include <algorithm>

namespace pinfeed {

std::optional<uint64_t> SilentLifelines::Add(uid_t uid, uint64_t id) {
  const auto own = users_.try_emplace(uid).first;
  auto from = users_.end();
  if (own->second.size() >= max_per_user_) {
    from = own;
  } else if (size_ >= max_total_) {
    from = std::max_element(users_.begin(), users_.end(),
                            [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  }
  own->second.insert(id);
  ++size_;
  if (from == users_.end()) return std::nullopt;
  const uint64_t evicted = *from->second.begin();
  Remove(from->first, evicted);
  return evicted;
}

void SilentLifelines::Remove(uid_t uid, uint64_t id) {
  const auto user = users_.find(uid);
  if (user == users_.end() || user->second.erase(id) == 0) return;
  --size_;
  if (user->second.empty()) users_.erase(user);
}

}  // namespace pinfeed
