// SPDX-License-Identifier: Apache-2.0
// What opens feeds, without a daemon around it.
#pragma once

#include <cstdint>

#include "server/session/open_feed.h"
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {

class OpenerTest : public FeedTest {
 protected:
  explicit OpenerTest(uint32_t sessions_of_a_user = 8)
      : FeedTest(Producer::kNative), sessions_{8, sessions_of_a_user, [] {}} {}

  FeedOpener::Parts PartsWith(DeviceArenas* devices, ResidentTable* residents, MemoryBudget* pool = nullptr) {
    return {.pool = pool == nullptr ? pool_ : *pool,
            .quarantine = kept_,
            .one_off_memory = one_off_memory_,
            .workers = *workers_,
            .readers = readers_,
            .feeds = table_,
            .sessions = sessions_,
            .default_slots = 4,
            .cpus = 2,
            .devices = devices,
            .tracer = tracer_,
            .residents = residents};
  }

  HostMemoryQuarantine kept_;
  HostMemoryQuarantine one_off_memory_;
  FeedTable table_;
  SessionTable sessions_;
  const FeedOpener opener_{PartsWith(nullptr, nullptr)};
};

}  // namespace pinfeed
