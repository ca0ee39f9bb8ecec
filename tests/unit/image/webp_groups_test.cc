// SPDX-License-Identifier: Apache-2.0
// Counts are those by which the streams are made here, or that libwebp's encoder can make.
#include "server/image/webp_groups.h"

#include <webp/decode.h>
#include <webp/encode.h>

#include <array>
#include <random>
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
  // The stream as a file.
  std::vector<std::byte> File() const {
    std::vector<uint8_t> bytes(bits_.size() / 8 + 8);
    bytes.resize(bytes.size() / 2 * 2);
    for (size_t i = 0; i < bits_.size(); ++i)
      bytes[i / 8] |= static_cast<uint8_t>((bits_[i] ? 1 : 0) << i % 8);
    std::vector<std::byte> file;
    const auto add = [&file](std::string_view name, size_t size) {
      for (const char c : name) file.push_back(static_cast<std::byte>(c));
      for (int i = 0; i < 4; ++i) file.push_back(static_cast<std::byte>(size >> 8 * i));
    };
    add("RIFF", bytes.size() + 12);
    add("WEBPVP8L", bytes.size());
    for (const uint8_t byte : bytes) file.push_back(std::byte{byte});
    return file;
  }
  size_t bits() const { return bits_.size(); }

 private:
  std::vector<bool> bits_;
};

std::span<const std::byte> Chunks(const std::vector<std::byte>& file) {
  return std::span(file).subspan(12);
}

struct Forged {
  std::vector<std::byte> file;
  size_t bytes;  // of the stream up to the groups
};

// A black image with a group for each block of 4 x 4 pixels.
Forged Forge(uint32_t width, uint32_t height) {
  BitWriter bits;
  bits.Write(0x2F, 8);
  bits.Write(width - 1, 14);
  bits.Write(height - 1, 14);
  bits.Write(0, 4);
  bits.Write(0, 1);  // no transform
  bits.Write(0, 1);  // no cache
  bits.Write(1, 1);
  bits.Write(0, 3);  // blocks
  bits.Write(0, 1);  // no cache
  bits.WriteFlat(256 + 24);
  bits.WriteFlat(256);
  for (int i = 0; i < 3; ++i) bits.WriteSingle();
  const uint32_t groups = (width + 3) / 4 * ((height + 3) / 4);
  for (uint32_t group = 0; group < groups; ++group) {
    bits.WriteCode(group & 0xFF, 8);
    bits.WriteCode(group >> 8, 8);
  }
  const size_t bytes = bits.bits() / 8;
  for (uint32_t code = 0; code < 5 * groups; ++code) bits.WriteSingle();
  return {bits.File(), bytes};
}

TEST(WebpGroupsTest, GroupsOfForgedFilesAreCounted) {
  for (const auto& [width, height] :
       {std::pair(4U, 4U), {5U, 4U}, {16383U, 1U}, {1U, 4099U}, {1024U, 1024U}}) {
    const std::vector<std::byte> file = Forge(width, height).file;
    EXPECT_EQ(CountPrefixCodeGroups(Chunks(file), width, height), (width + 3) / 4 * ((height + 3) / 4));
    ImageDecoder decoder;
    EXPECT_OK(DecodeImage(file, decoder).status()) << "libwebp takes it";
  }
}

TEST(WebpGroupsTest, WhatIsCutBeforeThePixelsHasNone) {
  const auto [file, bytes] = Forge(40, 30);
  constexpr size_t kHeader = 8;
  for (size_t size = 0; size < kHeader + bytes; ++size) {
    const std::vector<std::byte> cut(Chunks(file).begin(),
                                     Chunks(file).begin() + static_cast<ptrdiff_t>(size));
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
