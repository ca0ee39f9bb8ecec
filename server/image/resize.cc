// SPDX-License-Identifier: Apache-2.0
// Two passes with a filter that widens when it shrinks the image. The result of the horizontal pass is
// rounded to 8 bits. Weights outside the image are dropped and the rest normalised. The method is the one
// that Pillow documents (docs: concepts, filters), with its 22-bit weights. docs/decisions/0001-resampler.md
// says why this implementation exists.
#include "server/image/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pinfeed {
namespace {

constexpr int kBits = 22;
// A weight is high * 2^11 + low, so that two 16-bit multiply-adds replace one 32-bit product.
constexpr int kSplit = 11;
constexpr int32_t kHalf = 1 << (kBits - 1);
constexpr int kRowsAtOnce = 4;

// Truncates, as the method is defined: callers add a half instead of rounding to even.
int32_t Truncated(double value) {
  return static_cast<int32_t>(value);
}

Status CheckSides(const char* side, int32_t in, int32_t out) {
  if (std::max(in, out) <= kMaxResizeSide) return OkStatus();
  return ResourceExhausted("resize of a " + std::string(side) + " of " + std::to_string(in) + " pixels to " +
                           std::to_string(out) + " is over the limit of " + std::to_string(kMaxResizeSide) +
                           " pixels a side");
}

template <typename T>
size_t Bytes(const std::vector<T>& vector) {
  return vector.capacity() * sizeof(T);
}
size_t Bytes(const ResizeAxis& axis) {
  return Bytes(axis.first) + Bytes(axis.count) + Bytes(axis.weight) + Bytes(axis.high) + Bytes(axis.low);
}

// The filters: their reach at scale 1, and their weight at a distance within it.
struct Triangle {
  static constexpr double kReach = 1;
  static double At(double x) { return std::max(0.0, 1.0 - std::abs(x)); }
};
// R. Keys, "Cubic convolution interpolation for digital image processing", 1981, with a = -0.5.
struct Cubic {
  static constexpr double kReach = 2;
  static double At(double x) {
    constexpr double kA = -0.5;
    x = std::abs(x);
    if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * kA : 0;
  }
};
// A sinc windowed by the main lobe of a sinc three times as wide.
struct Lanczos {
  static constexpr double kReach = 3;
  static double Sinc(double x) {
    x *= std::numbers::pi;
    return x == 0 ? 1 : std::sin(x) / x;
  }
  static double At(double x) { return x >= -3 && x < 3 ? Sinc(x) * Sinc(x / 3) : 0; }
};

// Weights of the outputs [begin, begin + count) of an axis resized from `in` to `out` pixels, neither over
// kMaxResizeSide.
template <typename Filter>
void MakeAxis(int32_t in, int32_t out, int32_t begin, int32_t count, std::vector<double>& weights,
              ResizeAxis& axis) {
  const double scale = static_cast<double>(in) / out;
  const double filter_scale = std::max(scale, 1.0);
  const double support = Filter::kReach * filter_scale;
  axis.taps = (static_cast<int32_t>(std::ceil(support)) * 2 + 2) & ~1;
  const auto taps = static_cast<size_t>(axis.taps);
  weights.assign(taps, 0);
  axis.weight.assign(taps * static_cast<size_t>(count), 0);
  axis.first.resize(static_cast<size_t>(count));
  axis.count.resize(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    const double center = (begin + i + 0.5) * scale;
    const int32_t low = std::max(0, Truncated(center - support + 0.5));
    const int32_t high = std::min(in, Truncated(center + support + 0.5));
    double sum = 0;
    for (int32_t k = 0; k < high - low; ++k) {
      const double weight = Filter::At((k + low - center + 0.5) * (1.0 / filter_scale));
      weights[static_cast<size_t>(k)] = weight;
      sum += weight;
    }
    int32_t* const to = &axis.weight[static_cast<size_t>(i) * taps];
    for (int32_t k = 0; k < high - low; ++k) {
      const double weight = weights[static_cast<size_t>(k)] * (1.0 / sum) * (1 << kBits);
      to[k] = Truncated(weight + (weight < 0 ? -0.5 : 0.5));
    }
    axis.first[static_cast<size_t>(i)] = low;
    axis.count[static_cast<size_t>(i)] = high - low;
  }
}

// The input pixel of each output in [begin, begin + count). Like Pillow, adds up the scale from the centre of
// the first output, which accumulates the same rounding.
void NearestInputs(int32_t in, int32_t out, bool mirrored, int32_t begin, int32_t count,
                   std::vector<int32_t>& inputs) {
  const double scale = static_cast<double>(in) / out;
  inputs.resize(static_cast<size_t>(count));
  double at = scale * 0.5;
  for (int32_t i = 0; i < out; ++i, at += scale) {
    const int32_t input = std::min(Truncated(at), in - 1);
    const int32_t place = (mirrored ? out - 1 - i : i) - begin;
    if (place >= 0 && place < count) inputs[static_cast<size_t>(place)] = mirrored ? in - 1 - input : input;
  }
}

void ResizeNearest(const ImageView& source, ImageSize size, const Resampling& resampling, const Box& window,
                   ResizeScratch& scratch, uint8_t* out) {
  std::vector<int32_t>& columns = scratch.x.first;
  std::vector<int32_t>& rows = scratch.y.first;
  NearestInputs(source.width, size.width, resampling.mirrored, window.x, window.width, columns);
  NearestInputs(source.height, size.height, resampling.upside_down, window.y, window.height, rows);
  for (const int32_t row : rows) {
    const uint8_t* const from = source.Row(row);
    for (const int32_t column : columns) {
      std::memcpy(out, from + 3 * static_cast<size_t>(column), 3);
      out += 3;
    }
  }
}

uint8_t Rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255));
}

void RowsPortable(const ResizeAxis& axis, const uint8_t* const source[kRowsAtOnce],
                  uint8_t* const out[kRowsAtOnce]) {
  for (int r = 0; r < kRowsAtOnce; ++r) {
    for (size_t x = 0; x < axis.first.size(); ++x) {
      const uint8_t* pixel = source[r] + 3 * static_cast<size_t>(axis.first[x]);
      const int32_t* const weight = &axis.weight[x * static_cast<size_t>(axis.taps)];
      int32_t red = kHalf;
      int32_t green = kHalf;
      int32_t blue = kHalf;
      for (int32_t k = 0; k < axis.count[x]; ++k, pixel += 3) {
        red += pixel[0] * weight[k];
        green += pixel[1] * weight[k];
        blue += pixel[2] * weight[k];
      }
      out[r][3 * x] = Rounded(red);
      out[r][3 * x + 1] = Rounded(green);
      out[r][3 * x + 2] = Rounded(blue);
    }
  }
}

void BlendPortable(const ResizeAxis& axis, size_t y, const uint8_t* const* rows, uint8_t* out, size_t bytes) {
  const int32_t* const weight = &axis.weight[y * static_cast<size_t>(axis.taps)];
  constexpr size_t kBlock = 256;
  int32_t sums[kBlock];
  for (size_t x = 0; x < bytes; x += kBlock) {
    const size_t block = std::min(kBlock, bytes - x);
    std::fill_n(sums, block, kHalf);
    for (int32_t k = 0; k < axis.count[y]; ++k) {
      for (size_t i = 0; i < block; ++i) sums[i] += rows[k][x + i] * weight[k];
    }
    for (size_t i = 0; i < block; ++i) out[x + i] = Rounded(sums[i]);
  }
}

#if defined(__x86_64__)
#define PF_AVX2 __attribute__((target("avx2")))

void SplitWeights(ResizeAxis& axis) {
  constexpr int32_t kMask = (1 << kSplit) - 1;
  constexpr int32_t kHighMask = 0xFFFF;  // keeps the sign of the first weight out of the second
  axis.high.resize(axis.weight.size() / 2);
  axis.low.resize(axis.weight.size() / 2);
  for (size_t i = 0; i < axis.weight.size(); i += 2) {
    axis.high[i / 2] = ((axis.weight[i] >> kSplit) & kHighMask) |
                       static_cast<int32_t>(static_cast<uint32_t>(axis.weight[i + 1] >> kSplit) << 16);
    axis.low[i / 2] = (axis.weight[i] & kMask) | (axis.weight[i + 1] & kMask) << 16;
  }
}

PF_AVX2 inline __m256i Join(__m256i high, __m256i low) {
  const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, kSplit), low);
  return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(kHalf)), kBits);
}
PF_AVX2 inline void Add(__m256i& high, __m256i& low, __m256i pairs, __m256i weight_high, __m256i weight_low) {
  high = _mm256_add_epi32(high, _mm256_madd_epi16(pairs, weight_high));
  low = _mm256_add_epi32(low, _mm256_madd_epi16(pairs, weight_low));
}
PF_AVX2 inline __m256i LoadTwo(const uint8_t* a, const uint8_t* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}

// Reads up to 16 bytes from the start of a row's last pixel, and writes one byte past the last output.
PF_AVX2 void RowsAvx2(const ResizeAxis& axis, const uint8_t* const source[kRowsAtOnce],
                      uint8_t* const out[kRowsAtOnce]) {
  // Converts bytes r0 g0 b0 r1 g1 b1 ... to 16-bit pairs (r0 r1) (g0 g1) (b0 b1) (0 0), for taps 0 and 1, and
  // for taps 2 and 3.
  const __m256i first_two =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i next_two =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  const size_t pairs_each = static_cast<size_t>(axis.taps) / 2;
  for (size_t x = 0; x < axis.first.size(); ++x) {
    const int32_t* const high = &axis.high[x * pairs_each];
    const int32_t* const low = &axis.low[x * pairs_each];
    const int32_t pairs = (axis.count[x] + 1) / 2;
    size_t at = 3 * static_cast<size_t>(axis.first[x]);
    __m256i high01 = _mm256_setzero_si256();  // sums of rows 0 and 1, high parts of the weights
    __m256i low01 = high01;
    __m256i high23 = high01;
    __m256i low23 = high01;
    int32_t k = 0;
    for (; k + 2 <= pairs; k += 2, at += 12) {
      const __m256i upper = LoadTwo(source[0] + at, source[1] + at);
      const __m256i lower = LoadTwo(source[2] + at, source[3] + at);
      __m256i weight_high = _mm256_set1_epi32(high[k]);
      __m256i weight_low = _mm256_set1_epi32(low[k]);
      Add(high01, low01, _mm256_shuffle_epi8(upper, first_two), weight_high, weight_low);
      Add(high23, low23, _mm256_shuffle_epi8(lower, first_two), weight_high, weight_low);
      weight_high = _mm256_set1_epi32(high[k + 1]);
      weight_low = _mm256_set1_epi32(low[k + 1]);
      Add(high01, low01, _mm256_shuffle_epi8(upper, next_two), weight_high, weight_low);
      Add(high23, low23, _mm256_shuffle_epi8(lower, next_two), weight_high, weight_low);
    }
    if (k < pairs) {
      const __m256i weight_high = _mm256_set1_epi32(high[k]);
      const __m256i weight_low = _mm256_set1_epi32(low[k]);
      Add(high01, low01, _mm256_shuffle_epi8(LoadTwo(source[0] + at, source[1] + at), first_two), weight_high,
          weight_low);
      Add(high23, low23, _mm256_shuffle_epi8(LoadTwo(source[2] + at, source[3] + at), first_two), weight_high,
          weight_low);
    }
    const __m256i words = _mm256_packs_epi32(Join(high01, low01), Join(high23, low23));
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const int64_t rows02 = _mm256_extract_epi64(bytes, 0);
    const int64_t rows13 = _mm256_extract_epi64(bytes, 2);
    const int32_t pixels[kRowsAtOnce] = {static_cast<int32_t>(rows02), static_cast<int32_t>(rows13),
                                         static_cast<int32_t>(rows02 >> 32),
                                         static_cast<int32_t>(rows13 >> 32)};
    for (int r = 0; r < kRowsAtOnce; ++r) std::memcpy(out[r] + 3 * x, &pixels[r], 4);
  }
}

// Reads and writes in blocks of 32 bytes, so the memory of the rows and of the output must extend to a whole
// block.
PF_AVX2 void BlendAvx2(const ResizeAxis& axis, size_t y, const uint8_t* const* rows, uint8_t* out,
                       size_t bytes) {
  const size_t pairs_each = static_cast<size_t>(axis.taps) / 2;
  const int32_t* const high = &axis.high[y * pairs_each];
  const int32_t* const low = &axis.low[y * pairs_each];
  const __m256i zero = _mm256_setzero_si256();
  for (size_t x = 0; x < bytes; x += 32) {
    __m256i highs[4] = {zero, zero, zero, zero};
    __m256i lows[4] = {zero, zero, zero, zero};
    for (int32_t k = 0; k < axis.count[y]; k += 2) {
      const __m256i p = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k] + x));
      const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k + 1] + x));
      const __m256i first = _mm256_unpacklo_epi8(p, q);
      const __m256i second = _mm256_unpackhi_epi8(p, q);
      const __m256i weight_high = _mm256_set1_epi32(high[k / 2]);
      const __m256i weight_low = _mm256_set1_epi32(low[k / 2]);
      Add(highs[0], lows[0], _mm256_unpacklo_epi8(first, zero), weight_high, weight_low);
      Add(highs[1], lows[1], _mm256_unpackhi_epi8(first, zero), weight_high, weight_low);
      Add(highs[2], lows[2], _mm256_unpacklo_epi8(second, zero), weight_high, weight_low);
      Add(highs[3], lows[3], _mm256_unpackhi_epi8(second, zero), weight_high, weight_low);
    }
    const __m256i result =
        _mm256_packus_epi16(_mm256_packs_epi32(Join(highs[0], lows[0]), Join(highs[1], lows[1])),
                            _mm256_packs_epi32(Join(highs[2], lows[2]), Join(highs[3], lows[3])));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), result);
  }
}
#endif

}  // namespace

void ResizeScratch::Trim(size_t bytes) {
  lines.Trim(bytes);
  if (Bytes(x) + Bytes(y) + Bytes(weights) + Bytes(rows) <= bytes) return;
  x = ResizeAxis();
  y = ResizeAxis();
  weights = std::vector<double>();
  rows = std::vector<const uint8_t*>();
}

Status ResizeImage(const ImageView& source, int32_t width, int32_t height, const Resampling& resampling,
                   const Box& window, ResizeScratch& scratch, uint8_t* out, ResizeCode code) {
  RETURN_IF_ERROR(CheckSides("width", source.width, width));
  RETURN_IF_ERROR(CheckSides("height", source.height, height));
  if (resampling.interpolation == Interpolation::kNearest) {
    ResizeNearest(source, {width, height}, resampling, window, scratch, out);
    return OkStatus();
  }
  auto* rows_pass = RowsPortable;
  auto* blend_pass = BlendPortable;
  ResizeAxis& x = scratch.x;
  ResizeAxis& y = scratch.y;
  const auto make_axes = [&]<typename Filter>(Filter /*filter*/) {
    MakeAxis<Filter>(source.width, width, window.x, window.width, scratch.weights, x);
    MakeAxis<Filter>(source.height, height, window.y, window.height, scratch.weights, y);
  };
  if (resampling.interpolation == Interpolation::kBicubic) {
    make_axes(Cubic());
  } else if (resampling.interpolation == Interpolation::kLanczos) {
    make_axes(Lanczos());
  } else {
    make_axes(Triangle());
  }
#if defined(__x86_64__)
  if (code == ResizeCode::kBest && __builtin_cpu_supports("avx2") != 0) {
    rows_pass = RowsAvx2;
    blend_pass = BlendAvx2;
    SplitWeights(x);
    SplitWeights(y);
  }
#else
  static_cast<void>(code);
#endif
  // The rows between the passes are in a ring. They are computed four at a time, up to three more than
  // needed. Rows past the last one repeat it.
  const size_t bytes = 3 * static_cast<size_t>(window.width);
  const int32_t last_row = y.first.back() + y.count.back() - 1;
  const int32_t ring = std::min(y.taps, source.height) + kRowsAtOnce;
  // Whole 32-byte blocks, with at least one spare byte.
  const int32_t pitch_pixels = (window.width / 32 + 1) * 32;
  const size_t pitch = 3 * static_cast<size_t>(pitch_pixels);
  ASSIGN_OR_RETURN(uint8_t* const lines, scratch.lines.Reserve(pitch_pixels, ring));
  const auto line = [&](int32_t row) { return lines + static_cast<size_t>(row % ring) * pitch; };
  scratch.rows.resize(static_cast<size_t>(y.taps));
  int32_t next = y.first.front();
  for (size_t i = 0; i < y.first.size(); ++i) {
    while (next < y.first[i] + y.count[i]) {
      const uint8_t* from[kRowsAtOnce];
      uint8_t* to[kRowsAtOnce];
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int32_t row = std::min(next + r, last_row);
        from[r] = source.Row(row);
        to[r] = line(row);
      }
      rows_pass(x, from, to);
      next += kRowsAtOnce;
    }
    for (int32_t k = 0; k < y.taps; ++k) {
      scratch.rows[static_cast<size_t>(k)] = line(y.first[i] + std::min(k, y.count[i] - 1));
    }
    blend_pass(y, i, scratch.rows.data(), out + i * bytes, bytes);
  }
  return OkStatus();
}

}  // namespace pinfeed
