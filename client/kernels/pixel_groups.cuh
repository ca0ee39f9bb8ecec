// SPDX-License-Identifier: Apache-2.0
// Groups of eight neighbouring pixels of a row, each of which one thread turns into elements. In: an image's
// bytes, planar or interleaved, at any address. Out: elements by a table, planar or interleaved. With eight,
// a thread loads 8 bytes of a plane at once and stores 16 of 2-byte elements.
#pragma once

#include "client/kernels/convert_image.h"

namespace pinfeed {

// The bytes of each channel, in the order of the pixels.
template <uint32_t kChannels>
struct PixelGroup {
  uint32_t words[kChannels][kGroupPixels / 4];
};

// Reads 4 * kWords bytes at any address. Reads each aligned word that holds one of them: the size of every
// allocation is a multiple of 4.
template <uint32_t kWords>
__device__ inline void LoadWords(const uint8_t* from, uint32_t* out) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  if (kWords % 2 == 0 && address % sizeof(uint2) == 0) {
#pragma unroll
    for (uint32_t i = 0; i + 1 < kWords; i += 2) {
      const uint2 pair = reinterpret_cast<const uint2*>(from)[i / 2];
      out[i] = pair.x;
      out[i + 1] = pair.y;
    }
    return;
  }
  const auto shift = uint32_t(address % 4);
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(from - shift);
  uint32_t low = words[0];
#pragma unroll
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint32_t high = i + 1 < kWords || shift != 0 ? words[i + 1] : 0;
    out[i] = __funnelshift_r(low, high, 8 * shift);
    low = high;
  }
}

// Loads a whole group. `row`: its first pixel.
template <uint32_t kChannels>
__device__ inline PixelGroup<kChannels> LoadGroup(const uint8_t* row, bool chw, uint64_t plane) {
  PixelGroup<kChannels> group;
  if (chw || kChannels == 1) {
#pragma unroll
    for (uint32_t c = 0; c < kChannels; ++c) LoadWords<kGroupPixels / 4>(row + c * plane, group.words[c]);
    return group;
  }
  uint32_t mixed[kChannels * kGroupPixels / 4];
  LoadWords<kChannels * kGroupPixels / 4>(row, mixed);
#pragma unroll
  for (uint32_t i = 0; i < kGroupPixels / 4; ++i) {
#pragma unroll
    for (uint32_t c = 0; c < kChannels; ++c) {
      // Bytes c, c + 3, c + 6 and c + 9 of three words: c + 3 lies in the first two, c + 9 in the third.
      const uint32_t* const three = mixed + kChannels * i;
      const uint32_t first = __byte_perm(three[0], three[1], c == 2 ? 0x0052 : c == 1 ? 0x0741 : 0x0630);
      group.words[c][i] = __byte_perm(first, three[2], c == 2 ? 0x7410 : c == 1 ? 0x6210 : 0x5210);
    }
  }
  return group;
}

// Loads the first `count` pixels of a group. The others are 0.
template <uint32_t kChannels>
__device__ inline PixelGroup<kChannels> LoadPixels(const uint8_t* row, uint32_t count, bool chw,
                                                   uint64_t plane) {
  if (count == kGroupPixels) return LoadGroup<kChannels>(row, chw, plane);
  PixelGroup<kChannels> group{};
#pragma unroll
  for (uint32_t i = 0; i < kGroupPixels * kChannels; ++i) {
    const uint32_t k = i / kChannels;
    const uint32_t c = i % kChannels;
    if (k < count) group.words[c][k / 4] |= uint32_t(row[chw ? c * plane + k : i]) << (8 * (k % 4));
  }
  return group;
}

// Puts the first `count` pixels of a group into the opposite order.
template <uint32_t kChannels>
__device__ inline void Mirror(PixelGroup<kChannels>& group, uint32_t count) {
  const uint32_t unused = 8 * (kGroupPixels - count);  // bits in front of the last pixel
#pragma unroll
  for (uint32_t c = 0; c < kChannels; ++c) {
    const uint64_t reversed =
        uint64_t(__byte_perm(group.words[c][0], 0, 0x0123)) << 32 | __byte_perm(group.words[c][1], 0, 0x0123);
    group.words[c][0] = uint32_t(reversed >> unused);
    group.words[c][1] = uint32_t(reversed >> unused >> 32);
  }
}

template <typename Element>
__device__ inline uint32_t Packed(const uint32_t* values) {
  if (sizeof(Element) == 4) return values[0];
  if (sizeof(Element) == 2) return __byte_perm(values[0], values[1], 0x5410);
  return __byte_perm(__byte_perm(values[0], values[1], 0x0040), __byte_perm(values[2], values[3], 0x0040),
                     0x5410);
}

// Writes the first `count` of kCount consecutive elements.
template <typename Element, uint32_t kCount>
__device__ inline void StoreElements(const uint32_t* values, uint32_t count, Element* out) {
  constexpr uint32_t kOfWord = 4 / sizeof(Element);
  constexpr uint32_t kWords = kCount / kOfWord;
  uint32_t words[kWords];
#pragma unroll
  for (uint32_t i = 0; i < kWords; ++i) words[i] = Packed<Element>(values + i * kOfWord);
  const auto address = reinterpret_cast<uintptr_t>(out);
  if (kWords % 4 == 0 && count == kCount && address % sizeof(uint4) == 0) {
#pragma unroll
    for (uint32_t i = 0; i + 3 < kWords; i += 4)
      reinterpret_cast<uint4*>(out)[i / 4] = {words[i], words[i + 1], words[i + 2], words[i + 3]};
  } else if (kWords % 2 == 0 && count == kCount && address % sizeof(uint2) == 0) {
#pragma unroll
    for (uint32_t i = 0; i + 1 < kWords; i += 2)
      reinterpret_cast<uint2*>(out)[i / 2] = {words[i], words[i + 1]};
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i)
      if (i < count) out[i] = Element(values[i]);
  }
}

// Writes the first `count` pixels of a group as elements. `out`: the first one's; `keep`: 0: zeros are
// written.
template <typename Element, uint32_t kChannels>
__device__ inline void StoreGroup(const PixelGroup<kChannels>& group, const uint32_t* table, uint32_t keep,
                                  uint32_t count, bool chw, uint64_t plane, Element* out) {
  const auto value_of = [&](uint32_t c, uint32_t k) {
    return table[256 * c + (group.words[c][k / 4] >> (8 * (k % 4)) & 0xFF)] & keep;
  };
  if (chw || kChannels == 1) {
#pragma unroll
    for (uint32_t c = 0; c < kChannels; ++c) {
      uint32_t values[kGroupPixels];
#pragma unroll
      for (uint32_t k = 0; k < kGroupPixels; ++k) values[k] = value_of(c, k);
      StoreElements<Element, kGroupPixels>(values, count, out + c * plane);
    }
    return;
  }
  uint32_t values[kChannels * kGroupPixels];
#pragma unroll
  for (uint32_t i = 0; i < kChannels * kGroupPixels; ++i) values[i] = value_of(i % kChannels, i / kChannels);
  StoreElements<Element, kChannels * kGroupPixels>(values, count * kChannels, out);
}

}  // namespace pinfeed
