// SPDX-License-Identifier: Apache-2.0
// What SampleScratch keeps for the loader's programs.
#pragma once

#include <cstddef>
#include <vector>

#include "server/loading/image_source.h"
#include "server/loading/sample_loader.h"
#include "server/transform/mask.h"

namespace pinfeed {

struct SampleScratch::Buffers {
  std::vector<std::byte> encoded;  // rows, a tensor to be seen as an image, or a mask
  std::vector<std::byte> pixels;   // of the output's size, to be packed
  ImageSource::Scratch image;
  ImageBuffer widened;
  GeometryPlan plan;
  GeometryScratch geometry;
  MaskScratch mask;

  void Trim() {
    // Buffers that one giant sample made larger than this are given back after it.
    constexpr size_t kKeptBytes = size_t{64} << 20;
    if (encoded.capacity() > kKeptBytes) std::vector<std::byte>().swap(encoded);
    if (pixels.capacity() > kKeptBytes) std::vector<std::byte>().swap(pixels);
    image.Trim(kKeptBytes);
    widened.Trim(kKeptBytes);
    geometry.Trim(kKeptBytes);
  }
};

}  // namespace pinfeed
