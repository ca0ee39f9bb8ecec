// SPDX-License-Identifier: Apache-2.0
// Reports the limited resources that each user has.
#pragma once

#include "server/memory/device_arenas.h"
#include "server/memory/host_memory_quarantine.h"
#include "server/memory/memory_budget.h"
#include "server/metrics/snapshot.h"
#include "server/session/session_table.h"

namespace pinfeed {

// Fills `users`, `user_limits` and `kept_bytes`. `devices` and `cache` may be null.
void FillUsers(const MemoryBudget& pool, const HostMemoryQuarantine& kept, const SessionTable& sessions,
               const DeviceArenas* devices, const MemoryBudget* cache, DaemonSnapshot& snapshot);

}  // namespace pinfeed
