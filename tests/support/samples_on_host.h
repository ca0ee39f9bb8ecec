// SPDX-License-Identifier: Apache-2.0
// What the kernel of resident samples makes, as plain C++, written from what client/kernels/gather_samples.h
// promises and not after the device code, so that each can check the other.
#pragma once

#include "client/kernels/gather_samples.h"

namespace pinfeed {

// Precondition: all memory is the caller's.
void MakeSamplesOnHost(const GatherSamples& work, unsigned element_bytes);

}  // namespace pinfeed
