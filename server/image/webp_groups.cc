// SPDX-License-Identifier: Apache-2.0
#include "server/image/webp_groups.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace pinfeed {
namespace {

constexpr size_t kChunkHeaderBytes = 8;
constexpr size_t kLosslessHeaderBytes = 5;  // signature, and sizes that the file has, too
constexpr uint32_t kMaxCodeLength = 15;
constexpr uint32_t kLiterals = 256;
constexpr uint32_t kLengths = 24;
constexpr uint32_t kDistances = 40;
constexpr uint32_t kMaxCacheBits = 11;
// libwebp makes tables for all numbers up to the largest. If these are more than this, or than the pixels, it
// makes them for those that are used only.
constexpr uint64_t kMostUnused = 1000;

// Purpose: takes bits, the lowest of a byte first. Behind the end they are zeros.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // Precondition: count <= 32.
  uint32_t Read(uint32_t count) {
    uint32_t value = 0;
    for (uint32_t i = 0; i < count; ++i, ++next_)
      if (next_ / 8 < bytes_.size())
        value |= (std::to_integer<uint32_t>(bytes_[next_ / 8]) >> next_ % 8 & 1) << i;
    return value;
  }
  bool is_over() const { return next_ > 8 * bytes_.size(); }  // bits behind the end were taken

 private:
  const std::span<const std::byte> bytes_;
  uint64_t next_ = 0;
};

// Purpose: one canonical prefix code.
class PrefixCode {
 public:
  // Returns false if it is damaged.
  bool Read(BitReader& bits, uint32_t alphabet) {
    std::vector<uint8_t> lengths(alphabet);
    if (bits.Read(1) != 0) {
      const uint32_t symbols = bits.Read(1) + 1;
      const uint32_t first = bits.Read(bits.Read(1) == 0 ? 1 : 8);
      const uint32_t second = symbols == 2 ? bits.Read(8) : first;
      for (const uint32_t symbol : {first, second})
        if (symbol < alphabet) lengths[symbol] = 1;  // libwebp takes no notice of others
      return Build(lengths);
    }
    return ReadLengths(bits, lengths) && Build(lengths);
  }

  uint32_t Decode(BitReader& bits) const {
    if (symbols_.size() == 1) return symbols_[0];
    uint32_t code = 0;
    uint32_t first = 0;  // code of this length
    uint32_t index = 0;  // of its symbol
    for (uint32_t length = 1; length <= kMaxCodeLength; ++length) {
      code = code << 1 | bits.Read(1);
      if (code - first < counts_[length]) return symbols_[index + (code - first)];
      index += counts_[length];
      first = (first + counts_[length]) << 1;
    }
    return symbols_[0];  // never: Build takes complete codes only
  }

 private:
  static bool ReadLengths(BitReader& bits, std::vector<uint8_t>& lengths) {
    constexpr std::array<uint8_t, 19> kOrder = {17, 18, 0, 1,  2,  3,  4,  5,  16, 6,
                                                7,  8,  9, 10, 11, 12, 13, 14, 15};
    std::vector<uint8_t> of_lengths(kOrder.size());
    const uint32_t stored = 4 + bits.Read(4);
    for (uint32_t i = 0; i < stored; ++i) of_lengths[kOrder[i]] = static_cast<uint8_t>(bits.Read(3));
    PrefixCode code;
    if (!code.Build(of_lengths)) return false;
    size_t codes = lengths.size();
    if (bits.Read(1) != 0) codes = 2 + bits.Read(2 + 2 * bits.Read(3));
    if (codes > lengths.size()) return false;
    uint8_t last = 8;  // length that is not 0
    for (size_t symbol = 0; symbol < lengths.size() && codes > 0; --codes) {
      const uint32_t length = code.Decode(bits);
      if (length <= kMaxCodeLength) {
        lengths[symbol++] = static_cast<uint8_t>(length);
        if (length != 0) last = static_cast<uint8_t>(length);
        continue;
      }
      constexpr std::array<uint8_t, 3> kRepeatBits = {2, 3, 7};
      constexpr std::array<uint8_t, 3> kLeastRepeats = {3, 3, 11};
      const uint32_t kind = length - 16;
      const size_t repeats = kLeastRepeats[kind] + bits.Read(kRepeatBits[kind]);
      if (repeats > lengths.size() - symbol) return false;
      std::fill_n(lengths.begin() + static_cast<ptrdiff_t>(symbol), repeats, kind == 0 ? last : uint8_t{0});
      symbol += repeats;
    }
    return true;
  }

  // Returns false unless the code is complete, or has one symbol.
  bool Build(const std::vector<uint8_t>& lengths) {
    uint32_t left = 1;  // codes of a length that no shorter one begins
    for (uint32_t length = 1; length <= kMaxCodeLength; ++length) {
      for (size_t symbol = 0; symbol < lengths.size(); ++symbol) {
        if (lengths[symbol] != length) continue;
        ++counts_[length];
        symbols_.push_back(static_cast<uint16_t>(symbol));
      }
      left <<= 1;
      if (counts_[length] > left) return false;
      left -= counts_[length];
    }
    return symbols_.size() == 1 || (left == 0 && !symbols_.empty());
  }

  std::array<uint32_t, kMaxCodeLength + 1> counts_{};  // of symbols, by the length of their codes
  std::vector<uint16_t> symbols_;                      // by their codes
};

// The number that a symbol for lengths and distances stands for.
uint32_t ReadNumber(uint32_t symbol, BitReader& bits) {
  if (symbol < 4) return symbol + 1;
  const uint32_t extra = (symbol - 2) >> 1;
  return ((2 + (symbol & 1)) << extra) + bits.Read(extra) + 1;
}

// Passes over an image that belongs to the coding. Returns the largest number in the red and green of its
// pixels. Pixels that repeat others, or come from the cache, add none.
std::optional<uint32_t> ReadLargest(BitReader& bits, uint64_t width, uint64_t height) {
  uint32_t cached = 0;
  if (bits.Read(1) != 0) {
    const uint32_t cache_bits = bits.Read(4);
    if (cache_bits == 0 || cache_bits > kMaxCacheBits) return std::nullopt;
    cached = 1U << cache_bits;
  }
  PrefixCode green, red, blue, alpha, distance;
  if (!green.Read(bits, kLiterals + kLengths + cached) || !red.Read(bits, kLiterals) ||
      !blue.Read(bits, kLiterals) || !alpha.Read(bits, kLiterals) || !distance.Read(bits, kDistances))
    return std::nullopt;
  uint32_t largest = 0;
  for (uint64_t left = width * height; left > 0;) {
    const uint32_t symbol = green.Decode(bits);
    uint64_t pixels = 1;
    if (symbol < kLiterals) {
      largest = std::max(largest, red.Decode(bits) << 8 | symbol);
      static_cast<void>(blue.Decode(bits));
      static_cast<void>(alpha.Decode(bits));
    } else if (symbol < kLiterals + kLengths) {
      pixels = ReadNumber(symbol - kLiterals, bits);
      static_cast<void>(ReadNumber(distance.Decode(bits), bits));
    }
    if (bits.is_over() || pixels > left) return std::nullopt;
    left -= pixels;
  }
  return largest;
}

// Of `size` pixels in a row; the last block may be smaller.
uint64_t Blocks(uint64_t size, uint32_t block_bits) {
  return (size + (uint64_t{1} << block_bits) - 1) >> block_bits;
}

std::optional<uint64_t> CountGroups(BitReader bits, uint64_t width, uint64_t height) {
  enum Transform : uint32_t { kPredictor, kColour, kSubtractGreen, kPalette };
  for (uint32_t seen = 0; bits.Read(1) != 0;) {
    const uint32_t transform = bits.Read(2);
    if ((seen >> transform & 1) != 0) return std::nullopt;
    seen |= 1U << transform;
    if (transform == kPalette) {
      const uint32_t colours = bits.Read(8) + 1;
      if (!ReadLargest(bits, colours, 1)) return std::nullopt;
      width = Blocks(width, colours <= 2 ? 3 : colours <= 4 ? 2 : colours <= 16 ? 1 : 0);
    } else if (transform != kSubtractGreen) {
      const uint32_t block_bits = bits.Read(3) + 2;
      if (!ReadLargest(bits, Blocks(width, block_bits), Blocks(height, block_bits))) return std::nullopt;
    }
  }
  if (bits.Read(1) != 0) bits.Read(4);  // the size of the pixels' cache
  uint64_t groups = 1;
  if (bits.Read(1) != 0) {
    const uint32_t block_bits = bits.Read(3) + 2;
    const uint64_t columns = Blocks(width, block_bits);
    const uint64_t rows = Blocks(height, block_bits);
    const std::optional<uint32_t> largest = ReadLargest(bits, columns, rows);
    if (!largest) return std::nullopt;
    groups = *largest + 1;
    if (groups > kMostUnused || groups > width * height) groups = std::min(groups, columns * rows);
  }
  return bits.is_over() ? std::nullopt : std::optional(groups);
}

}  // namespace

std::optional<uint64_t> CountPrefixCodeGroups(std::span<const std::byte> chunks, uint32_t width,
                                              uint32_t height) {
  if (chunks.size() < kChunkHeaderBytes + kLosslessHeaderBytes) return std::nullopt;
  const std::string_view name(reinterpret_cast<const char*>(chunks.data()), 4);
  const std::span<const std::byte> data = chunks.subspan(kChunkHeaderBytes);
  if (name == "VP8L") return CountGroups(BitReader(data.subspan(kLosslessHeaderBytes)), width, height);
  const bool has_codes = name == "ALPH" && (data[0] & std::byte{3}) == std::byte{1};
  return has_codes ? CountGroups(BitReader(data.subspan(1)), width, height) : 0;
}

}  // namespace pinfeed
