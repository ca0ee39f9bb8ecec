// SPDX-License-Identifier: Apache-2.0
// Names every function that the project resolves, so that the library does not link when one is missing.
#include "tests/support/stand_in_cuda/stand_in.h"

namespace pinfeed::stand_in {

// Not static: the compiler has to keep it.
extern const CudaDriver kEveryFunction;
#define PF_STAND_IN_ADDRESS(name) &::name,
const CudaDriver kEveryFunction{PF_CUDA_FUNCTIONS(PF_STAND_IN_ADDRESS)};

}  // namespace pinfeed::stand_in
