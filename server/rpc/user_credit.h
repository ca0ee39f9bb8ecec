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
  static constexpr double kIncomeASecond = 40'000;
  static constexpr double kMost = 10'000;  // what is saved up
  static constexpr uint32_t kTurn = 32;    // what one connection gets before the next has its turn

  explicit UserCredit(Clock::time_point now) : counted_at_(now) {}

  // False if there is not enough credit, or if other connections are waiting.
  bool Take(uint32_t price, Clock::time_point now);
  // Queues connection `id` for max(price, kTurn). Precondition: it is not queued.
  void Wait(Id id, uint32_t price, bool is_new);
  // It waits no longer.
  void Leave(Id id);
  // The next connection and its credit; nothing if none is waiting or no credit is left.
  std::optional<std::pair<Id, uint32_t>> NextTurn(Clock::time_point now);
  bool somebody_waits() const { return !fresh_.empty() || !others_.empty(); }
  bool full(Clock::time_point now);

 private:
  using Waiting = std::deque<std::pair<Id, uint32_t>>;
  void Count(Clock::time_point now);

  double credit_ = kMost;  // below 0 after a price above a turn
  Clock::time_point counted_at_;
  Waiting fresh_;
  Waiting others_;
  double fresh_lead_ = 0;  // what they were given more than the others, while both wait
};

}  // namespace pinfeed
