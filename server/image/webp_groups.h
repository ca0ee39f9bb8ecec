// SPDX-License-Identifier: Apache-2.0
// How much a lossless WebP image (VP8L) needs besides its pixels. In: its chunks. Out: the number of its
// groups of prefix codes, for each of which libwebp makes tables before it decodes. Format: RFC 9649,
// section 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace pinfeed {

// `chunks`: those of one picture, "VP8L", or "ALPH" and "VP8 ". `width`, `height`: the picture's. Returns 0
// for what has no prefix codes, and nothing for what libwebp refuses, since it is damaged or cut off before
// its pixels. Reads only what lies before these, a small part of the file.
std::optional<uint64_t> CountPrefixCodeGroups(std::span<const std::byte> chunks, uint32_t width,
                                              uint32_t height);

}  // namespace pinfeed
