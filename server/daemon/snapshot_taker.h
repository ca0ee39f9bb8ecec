// SPDX-License-Identifier: Apache-2.0
// What the daemon is doing right now, for metrics and status.
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <cstdint>

#include "common/base/random.h"
#include "server/daemon/running_config.h"
#include "server/daemon/serving_state.h"
#include "server/metrics/snapshot.h"

namespace pinfeed {

struct DaemonParts;

// Purpose: collects the figures of every part. Borrows: all it is given, which outlives it. Threads: any,
// once the parts exist. Errors: none.
class SnapshotTaker {
 public:
  SnapshotTaker(DaemonParts& parts, const RunningConfig& config, const ServingState& state)
      : parts_(parts), config_(config), state_(state) {}

  DaemonSnapshot Take() const;
  // Distinguishes this daemon from those before it.
  uint64_t server_epoch() const { return server_epoch_; }

 private:
  using Clock = std::chrono::steady_clock;

  DaemonParts& parts_;
  const RunningConfig& config_;
  const ServingState& state_;
  const Clock::time_point started_ = Clock::now();
  const std::chrono::system_clock::time_point started_at_ = config_.loaded_at();
  const uint64_t server_epoch_ = std::bit_cast<uint64_t>(RandomBytes<std::array<std::byte, 8>>());
};

}  // namespace pinfeed
