// SPDX-License-Identifier: Apache-2.0
#include "server/feed/stall_account.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/histogram.h"

namespace pinfeed {
namespace {

// Workers that report no progress for this long wait for their source, since no decoding takes that long.
constexpr uint64_t kSurelyReadingNs = 2'000'000'000;

// Recent shares are of kRecentNs, so they need not follow each batch of a fast feed.
constexpr uint64_t kRecentStepNs = 1'000'000;

// The total of completed waits and of the current wait.
uint64_t WaitedNs(const ControlPages::ClientStats& stats, uint64_t now_ns) {
  const bool waiting = stats.waiting_since_ns != 0 && stats.waiting_since_ns < now_ns;
  return stats.wait_ns + (waiting ? now_ns - stats.waiting_since_ns : 0);
}

}  // namespace

void StallAccount::Account(const Membership& membership, const State& state) {
  const auto now = Clock::now();
  const uint64_t elapsed = Nanoseconds(now - std::exchange(time_, now));
  // Clients write these words, so they are untrusted and limited to the elapsed time.
  uint64_t waited = 0;
  for (Participant* member : membership.members()) {
    const ControlPages::ClientStats stats = member->pages->Stats();
    member->SeeTaken(stats.taken, now);
    const uint64_t total = WaitedNs(stats, Nanoseconds(now.time_since_epoch()));
    member->waited_now_ns = total > member->waited_ns ? std::min(total - member->waited_ns, elapsed) : 0;
    member->waited_ns = total;
    waited += member->waited_now_ns;
  }
  if (!state.running) return;
  waited /= std::max<size_t>(1, membership.members().size());
  running_ns_ += elapsed;
  starved_ns_ += waited;
  if (state.full) full_ns_ += elapsed;
  AddStalls(membership, state, elapsed, waited);
  unsettled_ns_ += elapsed;
  Settle(membership, state);
}

void StallAccount::AddStalls(const Membership& membership, const State& state, uint64_t elapsed,
                             uint64_t waited) {
  const auto add = [&state](StallSums& stalls, uint64_t ns) {
    if (state.cause) {
      stalls.Add(*state.cause, ns);
    } else {
      stalls.Defer(ns);
    }
  };
  if (!state.full) {
    add(stalls_, waited);
    for (Participant* member : membership.members()) add(member->stalls, member->waited_now_ns);
    return;
  }
  stalls_.Add(StallCause::kConsumer, elapsed);
  // Read once: a client may release a batch meanwhile.
  std::vector<std::pair<Participant*, uint32_t>> held;
  uint32_t most_held = membership.holders().empty() ? 0 : slot_count_;
  for (Participant* member : membership.members()) {
    held.emplace_back(member, member->CountHeld());
    most_held = std::max(most_held, held.back().second);
  }
  for (const auto& [member, count] : held) {
    if (count < most_held) {
      // It waits for the members that hold more. A held batch may be the one that it works on.
      member->stalls.Add(StallCause::kGroup, member->waited_now_ns);
      if (member->Owes() > 0) member->stalls.Add(StallCause::kConsumer, elapsed - member->waited_now_ns);
    } else if (member->Owes() > 0) {
      member->stalls.Add(StallCause::kConsumer, elapsed);
    } else {
      add(member->stalls, member->waited_now_ns);
    }
  }
}

void StallAccount::Settle(const Membership& membership, const State& state) {
  StallSums::Work work{unsettled_ns_, state.work.worked_ns - settled_.worked_ns,
                       state.work.read_ns - settled_.read_ns, state.work.decode_ns - settled_.decode_ns};
  if (work.worked_ns == 0 && state.working) {
    if (unsettled_ns_ < kSurelyReadingNs) return;
    work.worked_ns = work.elapsed_ns;
  }
  if (state.loading_ns) {
    work.elapsed_ns =
        std::min(*state.loading_ns - std::exchange(settled_loading_ns_, *state.loading_ns), unsettled_ns_);
    idle_ns_ += stalls_.Forget(work.elapsed_ns);
    for (Participant* member : membership.members()) member->stalls.Forget(work.elapsed_ns);
  }
  stalls_.Settle(work);
  for (Participant* member : membership.members()) member->stalls.Settle(work);
  settled_ = state.work;
  recent_ns_ += std::exchange(unsettled_ns_, 0);
  if (recent_ns_ < kRecentStepNs) return;
  const ExponentialDecay span(std::exchange(recent_ns_, 0));
  recent_.Add(span, stalls_.sums());
  for (Participant* member : membership.members()) member->recent.Add(span, member->stalls.sums());
}

void StallAccount::AddTo(FeedSnapshot& snapshot) const {
  snapshot.running_ns = running_ns_;
  snapshot.starved_ns = starved_ns_;
  snapshot.full_ns = full_ns_;
  snapshot.stall_ns = stalls_.sums();
  if (recent_.known()) snapshot.recent = recent_.shares();
  const double running = static_cast<double>(std::max<uint64_t>(1, running_ns_));
  const uint64_t stalled_ns = starved_ns_ - idle_ns_;
  if (full_ns_ >= stalled_ns) {
    snapshot.bound_on = "consumer";
    snapshot.bound_share = static_cast<double>(full_ns_) / running;
    return;
  }
  const StallTimes& stall = snapshot.stall_ns;
  const auto most =
      std::max_element(stall.begin(), stall.begin() + static_cast<size_t>(StallCause::kConsumer));
  const StallCause workers = snapshot.read_ns > snapshot.decode_ns ? StallCause::kRead : StallCause::kDecode;
  const auto cause = *most > 0 ? static_cast<size_t>(most - stall.begin()) : static_cast<size_t>(workers);
  snapshot.bound_on = kStallCauseNames[cause];
  snapshot.bound_share = static_cast<double>(stalled_ns) / running;
}

}  // namespace pinfeed
