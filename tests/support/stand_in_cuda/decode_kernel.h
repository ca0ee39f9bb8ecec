// SPDX-License-Identifier: Apache-2.0
// The kernels behind the JPEG engines, as plain C++.
#pragma once

#include <cuda.h>

#include "client/kernels/decode_images.h"

namespace pinfeed::stand_in {

CUresult RunDecode(const DecodeImages& work);
CUresult RunCheck(const DecodeImages& work);
CUresult RunPoison(const DecodeImages& work);

}  // namespace pinfeed::stand_in
