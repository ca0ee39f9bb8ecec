// SPDX-License-Identifier: Apache-2.0
// Images as the daemon's workers make them, to compare those of the client's decoder with, or in their place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/wire/image_plan.h"
#include "server/image/decode.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

// Purpose: makes images as a worker does, up to the pixels that ConvertImage gets: not mirrored. Threads:
// one.
class WorkerPath {
 public:
  // The plan of one sample of the chain; fails if the file is not decodable.
  Result<GeometryPlan> Plan(std::span<const std::byte> file, const TransformChain& chain, uint64_t sample);
  // RGB, rows packed.
  Result<std::vector<uint8_t>> Make(std::span<const std::byte> file, const GeometryPlan& plan);

 private:
  ImageDecoder decoder_;
  GeometryScratch scratch_;
};

struct PlannedSize {
  size_t height = 0;
  size_t width = 0;
  size_t channels = 3;
};

// Makes what a client makes of an encoded image and its plan of kind kJpeg: writes the pixels (HWC).
// kDataLoss for what libjpeg rejects, or if the file is not the plan's.
Status MakePlanned(std::span<const std::byte> file, const ImagePlan& plan, const PlannedSize& size,
                   std::span<uint8_t> pixels);

}  // namespace pinfeed
