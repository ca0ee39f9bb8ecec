// SPDX-License-Identifier: Apache-2.0
// Rate limit for all gRPC connections of one user. In: costs of frames. Out: which connection may continue.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

namespace pinfeed {

// Purpose: a token bucket with round-robin waiting, so that a busy connection does not starve the user's
// others. New connections have a queue of their own, which gets half of the credit. Threads: one at a time.
// Errors: none.
class UserCredit {
 public:
  using Clock = std::chrono::steady_clock;
  using Id = uint64_t;
  static constexpr double kCreditPerSecond = 40'000;
  static constexpr double kMaxCredit = 10'000;  // the limit of saved credit
  static constexpr uint32_t kGrant = 32;        // at least this much per turn of a connection

  explicit UserCredit(Clock::time_point now) : counted_at_(now) {}

  // Returns false if credit is short or other connections are waiting.
  bool TryTake(uint32_t cost, Clock::time_point now);
  // Queues connection `id` for max(cost, kGrant). Precondition: it is not queued.
  void Enqueue(Id id, uint32_t cost, bool is_new);
  // Takes the connection out of its queue.
  void Remove(Id id);
  // Returns the next connection and its credit; nothing if none is waiting or no credit is left.
  std::optional<std::pair<Id, uint32_t>> NextGrant(Clock::time_point now);
  bool anyone_waiting() const { return !new_connections_.empty() || !established_.empty(); }
  bool full(Clock::time_point now);

 private:
  using Waiting = std::deque<std::pair<Id, uint32_t>>;
  void Count(Clock::time_point now);

  double credit_ = kMaxCredit;  // negative after a grant that exceeded it
  Clock::time_point counted_at_;
  Waiting new_connections_;
  Waiting established_;
  double new_connections_lead_ = 0;  // how much more they were granted than the others, while both waited
};

}  // namespace pinfeed
