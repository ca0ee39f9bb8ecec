// SPDX-License-Identifier: Apache-2.0
// How the C interface describes tensors. In: a tensor of a slot. Out: a pf_tensor.
#pragma once

#include <cstdint>

#include "client/include/pinfeed/pinfeed.h"
#include "common/base/status.h"
#include "common/spec/tensor_spec.h"

namespace pinfeed {

// Describes a tensor of `samples` samples, without its memory. A packed tensor has the memory of a whole
// batch, of `batch_size` samples. The name is the spec's, which must outlive the result.
pf_tensor DescribeDense(const TensorSpec& spec, uint32_t samples, uint32_t batch_size);

// Writes `values` to the caller's struct. kFailedPrecondition for a packed tensor if the caller's version of
// the struct cannot say so.
Status FillTensor(pf_tensor* out, const pf_tensor& values);

}  // namespace pinfeed
