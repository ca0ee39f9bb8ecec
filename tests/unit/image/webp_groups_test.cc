// SPDX-License-Identifier: Apache-2.0
// Counts are those by which the streams are made here, or that libwebp's encoder can make.
#include "server/image/webp_groups.h"

#include <webp/decode.h>
#include <webp/encode.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "server/image/decode.h"
#include "tests/support/testing.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

// libwebp's encoder divides an image into at most so many blocks (MAX_HUFF_IMAGE_SIZE in src/enc/vp8l_enc.c).
constexpr uint64_t kMostGroupsOfEncoder = 2600;

// Purpose: writes a stream of VP8L.
class BitWriter {
 public:
  void Write(uint32_t value, int count) {
    for (int i = 0; i < count; ++i) bits_.push_back((value >> i & 1) != 0);
  }
  // A code of one symbol, which takes no bits.
  void WriteSingle() { Write(1, 4); }
  // A code whose first 256 symbols have 8 bits each.
  void WriteFlat(size_t alphabet) {
    constexpr std::array<int, 19> kOrder = {17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Write(0, 1);
    Write(12 - 4, 4);  // up to the length 8
    for (size_t i = 0; i < 12; ++i) Write(kOrder[i] == 0 || kOrder[i] == 8 ? 1 : 0, 3);
    Write(0, 1);
    for (size_t i = 0; i < alphabet; ++i) Write(i < 256 ? 1 : 0, 1);
  }
  // Bits of a prefix code come from the highest.
  void WriteCode(uint32_t value, int count) {
    for (int i = count; i-- > 0;) Write(value >> i & 1, 1);
  }
  std::vector<std::byte> Bytes() const {
    std::vector<std::byte> bytes(bits_.size() / 8 + 8);
    for (size_t i = 0; i < bits_.size(); ++i)
      bytes[i / 8] |= static_cast<std::byte>((bits_[i] ? 1 : 0) << i % 8);
    return bytes;
  }
  size_t whole_bytes() const { return bits_.size() / 8; }

 private:
  std::vector<bool> bits_;
};

void Add(std::string_view text, std::vector<std::byte>& bytes) {
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
}

std::vector<std::byte> Chunk(std::string_view name, std::string_view start,
                             const std::vector<std::byte>& data) {
  std::vector<std::byte> chunk;
  Add(name, chunk);
  const size_t size = start.size() + data.size();
  for (int i = 0; i < 4; ++i) chunk.push_back(static_cast<std::byte>(size >> 8 * i));
  Add(start, chunk);
  chunk.insert(chunk.end(), data.begin(), data.end());
  chunk.resize((chunk.size() + 1) / 2 * 2);
  return chunk;
}

using NumberOf = uint32_t (*)(uint32_t block);

struct Forged {
  std::vector<std::byte> stream;
  size_t bytes_before_groups = 0;
};

// A black image, whose blocks of 4 x 4 pixels have groups of these numbers. A palette of two colours has
// eight pixels of a row in one.
Forged Forge(uint32_t width, uint32_t height, NumberOf number, bool palette = false) {
  BitWriter bits;
  bits.Write(palette ? 1 : 0, 1);
  if (palette) {
    bits.Write(3, 2);
    bits.Write(2 - 1, 8);
    bits.Write(0, 1);  // no cache
    for (int i = 0; i < 5; ++i) bits.WriteSingle();
    bits.Write(0, 1);
    width = (width + 7) / 8;
  }
  bits.Write(0, 1);  // no cache
  bits.Write(1, 1);
  bits.Write(0, 3);  // blocks
  bits.Write(0, 1);  // no cache
  bits.WriteFlat(256 + 24);
  bits.WriteFlat(256);
  for (int i = 0; i < 3; ++i) bits.WriteSingle();
  uint32_t largest = 0;
  for (uint32_t block = 0; block < (width + 3) / 4 * ((height + 3) / 4); ++block) {
    bits.WriteCode(number(block) & 0xFF, 8);
    bits.WriteCode(number(block) >> 8, 8);
    largest = std::max(largest, number(block));
  }
  const size_t before = bits.whole_bytes();
  for (uint32_t code = 0; code < 5 * (largest + 1); ++code) bits.WriteSingle();
  return {bits.Bytes(), before};
}

std::vector<std::byte> LosslessChunk(uint32_t width, uint32_t height, const std::vector<std::byte>& stream) {
  std::string header(5, '\x2F');
  const uint32_t sizes = (width - 1) | (height - 1) << 14;
  for (int i = 0; i < 4; ++i) header[static_cast<size_t>(1 + i)] = static_cast<char>(sizes >> 8 * i);
  return Chunk("VP8L", header, stream);
}

TEST(WebpGroupsTest, GroupsOfForgedFilesAreCounted) {
  struct Case {
    uint32_t width;
    uint32_t height;
    NumberOf number;
    bool palette;
    uint64_t groups;
  };
  const NumberOf own = [](uint32_t block) { return block; };
  const NumberOf few = [](uint32_t block) { return block % 3; };
  // libwebp makes up to 1,000 groups, also if no block uses them. If there would be more, or more than
  // pixels, it makes those that are used.
  const NumberOf unused = [](uint32_t block) { return block == 7 ? 999U : 0U; };
  const NumberOf too_many = [](uint32_t block) { return block == 7 ? 1000U : 0U; };
  const NumberOf most = [](uint32_t /*block*/) { return 2000U; };
  const Case cases[] = {
      {4, 4, own, false, 1},         {5, 4, own, false, 2},           {16383, 1, own, false, 4096},
      {1, 4099, own, false, 1025},   {1024, 1024, own, false, 65536}, {40, 40, few, false, 3},
      {40, 40, unused, false, 1000}, {40, 40, too_many, false, 100},  {4, 4, most, false, 1},
      {400, 8, own, true, 26},       {400, 8, few, true, 3},          {16, 8, unused, false, 8},
      {400, 8, unused, true, 26}};
  for (const Case& one : cases) {
    SCOPED_TRACE(std::to_string(one.width) + " x " + std::to_string(one.height) + " " +
                 std::to_string(one.groups));
    const std::vector<std::byte> stream = Forge(one.width, one.height, one.number, one.palette).stream;
    const std::vector<std::byte> chunk = LosslessChunk(one.width, one.height, stream);
    EXPECT_EQ(CountPrefixCodeGroups(chunk, one.width, one.height), one.groups);
    EXPECT_EQ(CountPrefixCodeGroups(Chunk("ALPH", "\x01", stream), one.width, one.height), one.groups);
    ImageDecoder decoder;
    EXPECT_OK(DecodeImage(Chunk("RIFF", "WEBP", chunk), decoder).status()) << "libwebp takes it";
  }
  const std::vector<std::byte> plain(64);
  EXPECT_EQ(CountPrefixCodeGroups(Chunk("ALPH", std::string_view("\0", 1), plain), 4, 4), 0U);
  EXPECT_EQ(CountPrefixCodeGroups(Chunk("VP8 ", "", plain), 4, 4), 0U);
}

TEST(WebpGroupsTest, WhatIsCutBeforeThePixelsHasNone) {
  const auto [stream, bytes] = Forge(40, 30, [](uint32_t block) { return block; });
  const std::vector<std::byte> chunk = LosslessChunk(40, 30, stream);
  for (size_t size = 0; size < 8 + 5 + bytes; ++size) {
    const auto cut = std::span(chunk).first(size);
    EXPECT_EQ(CountPrefixCodeGroups(cut, 40, 30), std::nullopt) << size;
  }
}

// What libwebp decodes is never refused.
TEST(WebpGroupsTest, FilesOfAnEncoderHaveFewGroups) {
  const uint32_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 1U;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::minstd_rand random(seed);
  const auto below = [&random](size_t count) { return static_cast<size_t>(random()) % count; };
  int good = 0;
  int with_several = 0;
  for (int i = 0; i < 60; ++i) {
    const int width = 1 + static_cast<int>(below(300));
    const int height = 1 + static_cast<int>(below(300));
    std::vector<uint8_t> pixels(4 * static_cast<size_t>(width) * static_cast<size_t>(height));
    const size_t colours = 1 + below(i % 2 == 0 ? 20 : 256);
    for (size_t p = 0; p < pixels.size(); ++p)
      pixels[p] = static_cast<uint8_t>(p / 97 % 50 + below(1 + colours * (p / (pixels.size() / 4 + 1)) / 4));
    const bool lossless = i % 3 != 0;
    uint8_t* encoded = nullptr;
    const size_t size = lossless ? WebPEncodeLosslessRGBA(pixels.data(), width, height, 4 * width, &encoded)
                                 : WebPEncodeRGBA(pixels.data(), width, height, 4 * width, 70, &encoded);
    ASSERT_GT(size, 30U);
    const auto* const begin = reinterpret_cast<const std::byte*>(encoded);
    const std::vector<std::byte> file(begin, begin + size);
    WebPFree(encoded);
    const size_t first = lossless ? 12 : 30;  // behind the header, and VP8X
    const auto count = [&](const std::vector<std::byte>& bytes) {
      return CountPrefixCodeGroups(std::span(bytes).subspan(first), static_cast<uint32_t>(width),
                                   static_cast<uint32_t>(height));
    };
    const std::optional<uint64_t> groups = count(file);
    ASSERT_TRUE(groups.has_value()) << i;
    EXPECT_GE(*groups, 1U) << i;
    EXPECT_LE(*groups, kMostGroupsOfEncoder) << i;
    with_several += *groups > 1 ? 1 : 0;
    for (int damage = 0; damage < 40; ++damage) {
      std::vector<std::byte> other = file;
      std::byte& byte = other[first + 8 + below(std::min<size_t>(size - first - 8, 120))];
      byte ^= static_cast<std::byte>(1U << below(8));
      std::vector<uint8_t> out(pixels.size());
      const auto* const bytes = reinterpret_cast<const uint8_t*>(other.data());
      if (WebPDecodeRGBAInto(bytes, size, out.data(), out.size(), 4 * width) == nullptr) continue;
      ++good;
      ASSERT_TRUE(count(other).has_value()) << i << " " << damage;
    }
  }
  EXPECT_GT(with_several, 5);
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace pinfeed
