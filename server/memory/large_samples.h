// SPDX-License-Identifier: Apache-2.0
// Lets large samples have the host's memory in turn when there is not enough for all of them at once, so that
// which samples are bad does not depend on how many workers load at the same time.
#pragma once

#include <chrono>
#include <functional>

#include "common/base/status.h"
#include "common/base/sync.h"

namespace pinfeed {

// Purpose: counts the threads whose sample takes much memory, and has one of them load alone after memory was
// refused to it. Threads: any.
// Invariant: a thread that waits for its turn holds no memory of a large sample, so that no two wait for each
// other.
class LargeSamples {
 public:
  using Clock = std::chrono::steady_clock;

  // `longest_turn`: how long a thread may load alone, since its storage may hang. Then it is the next one's
  // turn.
  explicit LargeSamples(Clock::duration longest_turn = std::chrono::seconds(30))
      : longest_turn_(longest_turn) {}
  ~LargeSamples() = default;

  // Purpose: one thread's attempts to load a sample. Make it before the attempt, and end it when the buffers
  // that became large are free again. Borrows: the LargeSamples. Not movable, one a thread at a time.
  class Attempts {
   public:
    explicit Attempts(LargeSamples& all);
    ~Attempts();
    Attempts(const Attempts&) = delete;
    Attempts& operator=(const Attempts&) = delete;

    // Memory was refused to the attempt.
    void Refuse() { refused_ = true; }
    bool refused() const { return refused_; }
    // Whether to try a failed attempt once more: memory was refused to it, and it is this thread's turn now.
    // Waits for the turn, and until no other thread holds the memory of a large sample. Calls `waiting`
    // before it waits, which must not load a sample. Precondition: the buffers of the attempt are free.
    bool Again(const std::function<void()>& waiting = nullptr);

   private:
    friend class LargeSamples;
    LargeSamples& all_;
    bool refused_ = false;
    bool large_ = false;  // counted
    bool tried_again_ = false;
  };

  // Calls `attempt`, which frees what it took if it fails, and once more alone if memory was refused to it.
  // See Attempts::Again, which may wait. Returns what the last call did.
  Status Try(const std::function<Status()>& attempt);

  // The calling thread's sample is about to take much memory. False: it is another thread's turn. Without
  // Attempts of the thread nothing is counted.
  bool Begin();
  // The memory of which Begin spoke was refused.
  static void Refuse();

 private:
  // The calling thread's, or null.
  static thread_local Attempts* current_;

  void EndLocked(Attempts& attempts) PF_REQUIRES(mutex_);
  bool IsTurnOfOtherLocked(const Attempts& attempts) const PF_REQUIRES(mutex_);
  // Ends the attempt's count. Returns false if it would have to wait for the turn, and may not.
  bool TakeTurn(Attempts& attempts, bool may_wait) PF_EXCLUDES(mutex_);

  const Clock::duration longest_turn_;
  Mutex mutex_;
  CondVar changed_;
  int large_ PF_GUARDED_BY(mutex_) = 0;
  const Attempts* turn_ PF_GUARDED_BY(mutex_) = nullptr;  // whose it is
  Clock::time_point turn_ends_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
