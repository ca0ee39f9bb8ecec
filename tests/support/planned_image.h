// SPDX-License-Identifier: Apache-2.0
// What a client makes of an encoded image and its plan, on the CPU: exactly what a worker makes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/status.h"
#include "common/wire/image_plan.h"

namespace pinfeed {

struct PlannedSize {
  size_t height = 0;
  size_t width = 0;
  size_t channels = 3;
};

// Writes the pixels (HWC) of an image of kind kJpeg. kDataLoss for what libjpeg rejects, or if the file is
// not the plan's.
Status MakePlanned(std::span<const std::byte> file, const ImagePlan& plan, const PlannedSize& size,
                   std::span<uint8_t> pixels);

}  // namespace pinfeed
