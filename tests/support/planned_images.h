// SPDX-License-Identifier: Apache-2.0
// Images as the daemon's workers make them, to compare those of the client's decoder with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

}  // namespace pinfeed
