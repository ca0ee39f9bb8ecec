// SPDX-License-Identifier: Apache-2.0
#include "tests/support/stand_in_cuda/decode_kernel.h"

#include <algorithm>
#include <cstring>

#include "tests/support/decode_on_host.h"
#include "tests/support/stand_in_cuda/stand_in.h"

namespace pinfeed::stand_in {
namespace {

bool IsWritable(const void* memory, uint64_t bytes) {
  return bytes == 0 || IsReachable(AddressOf(memory), bytes, Rights::kReadWrite);
}

bool PixelsAreReachable(const DecodedImage& image) {
  return image.pixels == nullptr ||
         IsReachable(AddressOf(image.pixels),
                     static_cast<uint64_t>(image.y.first + image.y.region) * image.pitch, Rights::kRead);
}

}  // namespace

CUresult RunDecode(const DecodeImages& work) {
  const uint64_t bytes = uint64_t{work.height} * work.width * work.channels;
  if (!IsReachable(AddressOf(work.images), work.count * sizeof(DecodedImage), Rights::kRead))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (uint32_t i = 0; i < work.count; ++i) {
    const DecodedImage& image = work.images[i];
    if (!IsWritable(image.out, bytes) || !PixelsAreReachable(image)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (image.pixels == nullptr)
      std::memset(image.out, 0, bytes);
    else
      MakeOnHost(work, image);
  }
  return CUDA_SUCCESS;
}

// An image was left out if the last row of its region has the poison.
CUresult RunCheck(const DecodeImages& work) {
  for (uint32_t i = 0; i < work.count; ++i) {
    const DecodedImage& image = work.images[i];
    const int32_t aligned = (3 * image.x.first + 7) / 8 * 8;
    if (image.pixels == nullptr || aligned + 8 > 3 * (image.x.first + image.x.region)) continue;
    if (!PixelsAreReachable(image)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    uint64_t word = 0;
    const auto last = static_cast<uint64_t>(image.y.first + image.y.region - 1);
    std::memcpy(&word, image.pixels + last * image.pitch + aligned, sizeof word);
    if (word == work.poison) work.unwritten[i] = 1;
  }
  return CUDA_SUCCESS;
}

CUresult RunFill(const FillWords& work) {
  if (!IsWritable(work.out, work.words * sizeof(uint64_t))) return CUDA_ERROR_ILLEGAL_ADDRESS;
  std::fill_n(work.out, work.words, work.value);
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
