// SPDX-License-Identifier: Apache-2.0
#include "client/src/api/c_tensor.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "client/src/api/c_api.h"

namespace pinfeed {

pf_tensor DescribeDense(const TensorSpec& spec, uint32_t samples, uint32_t batch_size) {
  pf_tensor tensor{};
  tensor.name = spec.name.c_str();
  tensor.dtype = static_cast<pf_dtype>(spec.dtype);
  if (spec.extents) {
    tensor.dims = static_cast<uint32_t>(spec.shape.size());
    std::copy(spec.shape.begin(), spec.shape.end(), tensor.shape);
    tensor.shape[0] *= batch_size;
    tensor.extents = *spec.extents + 1;
  } else {
    tensor.dims = static_cast<uint32_t>(1 + spec.shape.size());
    tensor.shape[0] = samples;
    std::copy(spec.shape.begin(), spec.shape.end(), tensor.shape + 1);
    tensor.lengths = spec.lengths ? *spec.lengths + 1 : 0;
  }
  int64_t stride = 1;
  for (uint32_t i = tensor.dims; i-- > 0;) {
    tensor.strides[i] = stride;
    stride *= std::max<int64_t>(tensor.shape[i], 1);
  }
  return tensor;
}

Status FillTensor(pf_tensor* out, const pf_tensor& values) {
  const bool knows_packed =
      out == nullptr || out->size >= offsetof(pf_tensor, extents) + sizeof(out->extents);
  if (values.extents != 0 && !knows_packed)
    return FailedPrecondition(
        std::string("tensor '") + values.name +
        "' is packed, which this program does not know: compile it with the pinfeed.h of "
        "this libpinfeed, or pad the field");
  return FillStruct(out, values, "pf_tensor_init");
}

}  // namespace pinfeed
