// SPDX-License-Identifier: Apache-2.0
// The kernel that makes batches of resident samples, as plain C++.
#pragma once

#include <cuda.h>

#include "client/kernels/gather_samples.h"

namespace pinfeed::stand_in {

CUresult RunSamples(const GatherSamples& work, unsigned element_bytes);

}  // namespace pinfeed::stand_in
