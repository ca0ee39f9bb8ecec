// SPDX-License-Identifier: Apache-2.0
#include "tests/support/stand_in_cuda/decode_kernel.h"

#include <cstring>
#include <optional>

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

// Where the poison of an image goes: into the last row of its region. Null: into none. Nothing: the memory is
// not reachable.
std::optional<uint64_t*> PlaceOf(const DecodedImage& image) {
  const int32_t aligned = (3 * image.x.first + 7) / 8 * 8;
  if (image.pixels == nullptr || aligned + 8 > 3 * (image.x.first + image.x.region)) return nullptr;
  const auto last = static_cast<uint64_t>(image.y.first + image.y.region - 1);
  uint8_t* const place = const_cast<uint8_t*>(image.pixels) + last * image.pitch + aligned;
  if (!IsWritable(place, sizeof(uint64_t))) return std::nullopt;
  return reinterpret_cast<uint64_t*>(place);
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

CUresult RunCheck(const DecodeImages& work) {
  for (uint32_t i = 0; i < work.count; ++i) {
    const std::optional<uint64_t*> place = PlaceOf(work.images[i]);
    if (!place) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (*place != nullptr && **place == work.poison) work.unwritten[i] = 1;
  }
  return CUDA_SUCCESS;
}

CUresult RunPoison(const DecodeImages& work) {
  for (uint32_t i = 0; i < work.count; ++i) {
    const std::optional<uint64_t*> place = PlaceOf(work.images[i]);
    if (!place) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (*place != nullptr) **place = work.poison;
  }
  return CUDA_SUCCESS;
}

}  // namespace pinfeed::stand_in
