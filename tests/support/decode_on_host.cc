// SPDX-License-Identifier: Apache-2.0
#include "tests/support/decode_on_host.h"

#include <algorithm>
#include <cmath>

#define __device__
namespace pinfeed {
using std::max;
using std::min;
}  // namespace pinfeed
#include "client/kernels/resize_axis.cuh"
#include "client/kernels/source_pixels.cuh"
#include "tests/support/make_image.h"

namespace pinfeed {

void MakeOnHost(const DecodeImages& work, const DecodedImage& image) {
  MakeImage(work, image);
}

}  // namespace pinfeed
