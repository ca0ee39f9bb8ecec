// SPDX-License-Identifier: Apache-2.0
// Reads the header of a JPEG file with nvJPEG, whose view of it decides what the engines write.
#pragma once

#include <cstddef>
#include <span>

#include "client/src/image_plan_check.h"
#include "common/base/result.h"
#include "common/cuda/nvjpeg.h"

namespace pinfeed {

// Leaves the header in the decoder's bitstream. kDataLoss for what nvJPEG cannot read, and for chroma that is
// not sampled 4:4:4, 4:2:2 or 4:2:0.
Result<JpegFrame> ReadJpegFrame(const NvJpeg& api, const nvjpeg::Decoder& decoder,
                                std::span<const std::byte> bytes);

}  // namespace pinfeed
