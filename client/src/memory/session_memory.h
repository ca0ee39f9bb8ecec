// SPDX-License-Identifier: Apache-2.0
// Maps what the daemon hands over for a session. In: an offer and the descriptors of the welcome. Out:
// checked mappings.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/src/gpu/device_slots.h"
#include "client/src/gpu/resident_samples.h"
#include "client/src/link/offer.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/os/memfd.h"

namespace pinfeed {

// Owns all of it. The release page has to outlive `device`.
struct SessionMemory {
  Mapping publish;
  Mapping release;
  UniqueFd doorbell;
  Mapping arena;                        // on the host
  std::unique_ptr<DeviceSlots> device;  // on a device
  std::unique_ptr<ResidentSamples> resident;
};

// Checks and maps everything; a device arena on the caller's GPU `ordinal`. On an error nothing stays mapped.
// Sets `memory_unusable` if mapping or checking a device arena, or resident samples, failed. Precondition:
// the offer passed CheckOffer, and `fds` are all that its backend has.
Result<SessionMemory> MapSessionMemory(const FeedOffer& offer, int ordinal, std::vector<UniqueFd>& fds,
                                       bool* memory_unusable);

// kInternal: what the daemon wrote into the session's memory is impossible.
Status BrokenSession(const std::string& what);

}  // namespace pinfeed
