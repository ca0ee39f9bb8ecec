// SPDX-License-Identifier: Apache-2.0
// Rate limit for all gRPC connections of one user. In: costs of frames. Out: which connection may continue.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

namespace pinfeed {

// Purpose: a token bucket with round-robin waiting, so that one busy connection leaves the
// others their share; new ones have a queue of their own, and half of it. Threads: one at a time. Errors:
// none.
class UserCredit {
 public:
  using Clock = std::chrono::steady_clock;
  using Id = uint64_t;
  static constexpr double kCreditPerSecond = 40'000;
  static constexpr double kMaxCredit = 10'000;  // what is saved up
  static constexpr uint32_t kGrant = 32;        // what one connection gets before the next has its turn

  explicit UserCredit(Clock::time_point now) : counted_at_(now) {}

  // False if there is not enough credit, or if other connections are waiting.
  bool TryTake(uint32_t cost, Clock::time_point now);
  // Queues connection `id` for max(cost, kGrant). Precondition: it is not queued.
  void Enqueue(Id id, uint32_t cost, bool is_new);
  // It waits no longer.
  void Remove(Id id);
  // The next connection and its credit; nothing if none is waiting or no credit is left.
  std::optional<std::pair<Id, uint32_t>> NextGrant(Clock::time_point now);
  bool anyone_waiting() const { return !new_connections_.empty() || !established_.empty(); }
  bool full(Clock::time_point now);

 private:
  using Waiting = std::deque<std::pair<Id, uint32_t>>;
  void Count(Clock::time_point now);

  double credit_ = kMaxCredit;  // below 0 after a cost above a turn
  Clock::time_point counted_at_;
  Waiting new_connections_;
  Waiting established_;
  double new_connections_lead_ = 0;  // what they were given more than the others, while both wait
};

}  // namespace pinfeed
