// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the kernel behind the JPEG engines, compiled for the processor.
#pragma once

#include "client/kernels/decode_images.h"

namespace pinfeed {

// Makes one image of pixels, one output after the other, as a kernel with the parameters of `work`
// does.
void MakeOnHost(const DecodeImages& work, const DecodedImage& image);

}  // namespace pinfeed
