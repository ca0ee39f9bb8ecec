// SPDX-License-Identifier: Apache-2.0
// In: an interleaved RGB uint8 image and a box in it. Out: the box resized with a triangle filter that widens
// when it shrinks. Two passes of 22-bit fixed-point weights, rounded to 8 bits after the horizontal one;
// weights outside the image are dropped and the rest normalised. This is the method that Pillow documents
// (docs: concepts, filters) and gives its bytes. AVX2 is exact too: a weight is split as hi * 2^11 + lo, so
// two 16-bit multiply-adds sum what one 32-bit product would.
#include "own.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {
constexpr int kBits = 22, kSplit = 11, kHalf = 1 << (kBits - 1);

struct Axis {
  int taps = 0;                           // even, the same for every output
  std::vector<int> first, count, weight;  // weight[out * taps + k]
  std::vector<int32_t> hi, lo;            // two 16-bit weights each: hi[(out * taps + k) / 2]
};

Axis MakeAxis(int in_size, double start, double length, int out_size) {
  const double scale = length / out_size, support = std::max(scale, 1.0);
  Axis a;
  a.taps = (static_cast<int>(std::ceil(support)) * 2 + 2) & ~1;
  a.weight.assign(static_cast<size_t>(a.taps) * out_size, 0);
  std::vector<double> w(a.taps);
  for (int out = 0; out < out_size; ++out) {
    const double center = start + (out + 0.5) * scale;
    const int lo = std::max(0, static_cast<int>(center - support + 0.5));
    const int hi = std::min(in_size, static_cast<int>(center + support + 0.5));
    double sum = 0;
    for (int x = lo; x < hi; ++x)
      sum += w[x - lo] = std::max(0.0, 1.0 - std::abs((x - center + 0.5) * (1.0 / support)));
    for (int k = 0; k < hi - lo; ++k)
      a.weight[static_cast<size_t>(out) * a.taps + k] =
          static_cast<int>(w[k] * (1.0 / sum) * (1 << kBits) + 0.5);
    a.first.push_back(lo);
    a.count.push_back(hi - lo);
  }
  const int mask = (1 << kSplit) - 1;
  for (size_t i = 0; i < a.weight.size(); i += 2) {
    a.hi.push_back((a.weight[i] >> kSplit) | (a.weight[i + 1] >> kSplit) << 16);
    a.lo.push_back((a.weight[i] & mask) | (a.weight[i + 1] & mask) << 16);
  }
  return a;
}

uint8_t Clip(int sum) {
  return static_cast<uint8_t>(std::min(255, sum >> kBits));
}

void RowsScalar(const Axis& a, int out_size, const uint8_t* const src[4], uint8_t* const dst[4]) {
  for (int r = 0; r < 4; ++r)
    for (int x = 0; x < out_size; ++x) {
      const uint8_t* p = src[r] + 3 * a.first[x];
      const int* w = &a.weight[static_cast<size_t>(x) * a.taps];
      int s0 = kHalf, s1 = kHalf, s2 = kHalf;
      for (int k = 0; k < a.count[x]; ++k, p += 3) s0 += p[0] * w[k], s1 += p[1] * w[k], s2 += p[2] * w[k];
      dst[r][3 * x] = Clip(s0), dst[r][3 * x + 1] = Clip(s1), dst[r][3 * x + 2] = Clip(s2);
    }
}

void BlendScalar(const Axis& a, int out, const uint8_t* const* rows, uint8_t* dst, int bytes) {
  const int* w = &a.weight[static_cast<size_t>(out) * a.taps];
  int sum[256];
  for (int x = 0; x < bytes; x += 256) {
    const int n = std::min(256, bytes - x);
    std::fill_n(sum, n, kHalf);
    for (int k = 0; k < a.count[out]; ++k)
      for (int i = 0; i < n; ++i) sum[i] += rows[k][x + i] * w[k];
    for (int i = 0; i < n; ++i) dst[x + i] = Clip(sum[i]);
  }
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
AVX2 inline __m256i Join(__m256i hi, __m256i lo) {
  return _mm256_srai_epi32(
      _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(hi, kSplit), lo), _mm256_set1_epi32(kHalf)), kBits);
}
AVX2 inline void Add(__m256i& hi, __m256i& lo, __m256i pairs, __m256i whi, __m256i wlo) {
  hi = _mm256_add_epi32(hi, _mm256_madd_epi16(pairs, whi));
  lo = _mm256_add_epi32(lo, _mm256_madd_epi16(pairs, wlo));
}
AVX2 inline __m256i Load2(const uint8_t* a, const uint8_t* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}

// Reads up to 16 bytes past a row's last pixel, writes 1 past the last output.
AVX2 void RowsAvx2(const Axis& a, int out_size, const uint8_t* const src[4], uint8_t* const dst[4]) {
  // Bytes r0 g0 b0 r1 g1 b1 -> 16-bit pairs (r0 r1) (g0 g1) (b0 b1) (0 0), for taps 0 and 1, and 2 and 3.
  const __m256i first2 =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i next2 =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  for (int x = 0; x < out_size; ++x) {
    const int32_t* whi = &a.hi[static_cast<size_t>(x) * a.taps / 2];
    const int32_t* wlo = &a.lo[static_cast<size_t>(x) * a.taps / 2];
    const int pairs = (a.count[x] + 1) / 2;
    size_t at = 3 * static_cast<size_t>(a.first[x]);
    __m256i h0 = _mm256_setzero_si256(), l0 = h0, h1 = h0, l1 = h0;
    int k = 0;
    for (; k + 2 <= pairs; k += 2, at += 12) {
      const __m256i p0 = Load2(src[0] + at, src[1] + at), p1 = Load2(src[2] + at, src[3] + at);
      __m256i wh = _mm256_set1_epi32(whi[k]), wl = _mm256_set1_epi32(wlo[k]);
      Add(h0, l0, _mm256_shuffle_epi8(p0, first2), wh, wl);
      Add(h1, l1, _mm256_shuffle_epi8(p1, first2), wh, wl);
      wh = _mm256_set1_epi32(whi[k + 1]), wl = _mm256_set1_epi32(wlo[k + 1]);
      Add(h0, l0, _mm256_shuffle_epi8(p0, next2), wh, wl);
      Add(h1, l1, _mm256_shuffle_epi8(p1, next2), wh, wl);
    }
    if (k < pairs) {
      const __m256i wh = _mm256_set1_epi32(whi[k]), wl = _mm256_set1_epi32(wlo[k]);
      Add(h0, l0, _mm256_shuffle_epi8(Load2(src[0] + at, src[1] + at), first2), wh, wl);
      Add(h1, l1, _mm256_shuffle_epi8(Load2(src[2] + at, src[3] + at), first2), wh, wl);
    }
    const __m256i words = _mm256_packs_epi32(Join(h0, l0), Join(h1, l1));  // rows 0 and 2, rows 1 and 3
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const int64_t r02 = _mm256_extract_epi64(bytes, 0), r13 = _mm256_extract_epi64(bytes, 2);
    const int32_t pixel[4] = {static_cast<int32_t>(r02), static_cast<int32_t>(r13),
                              static_cast<int32_t>(r02 >> 32), static_cast<int32_t>(r13 >> 32)};
    for (int r = 0; r < 4; ++r) std::memcpy(dst[r] + 3 * x, &pixel[r], 4);
  }
}

// Reads rows in blocks of 32 bytes: they are padded.
AVX2 void BlendAvx2(const Axis& a, int out, const uint8_t* const* rows, uint8_t* dst, int bytes) {
  const int32_t* whi = &a.hi[static_cast<size_t>(out) * a.taps / 2];
  const int32_t* wlo = &a.lo[static_cast<size_t>(out) * a.taps / 2];
  const __m256i zero = _mm256_setzero_si256();
  for (int x = 0; x < bytes; x += 32) {
    __m256i h[4] = {zero, zero, zero, zero}, l[4] = {zero, zero, zero, zero};
    for (int k = 0; k < a.count[out]; k += 2) {
      const __m256i p = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k] + x));
      const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k + 1] + x));
      const __m256i low = _mm256_unpacklo_epi8(p, q), high = _mm256_unpackhi_epi8(p, q);
      const __m256i wh = _mm256_set1_epi32(whi[k / 2]), wl = _mm256_set1_epi32(wlo[k / 2]);
      Add(h[0], l[0], _mm256_unpacklo_epi8(low, zero), wh, wl);
      Add(h[1], l[1], _mm256_unpackhi_epi8(low, zero), wh, wl);
      Add(h[2], l[2], _mm256_unpacklo_epi8(high, zero), wh, wl);
      Add(h[3], l[3], _mm256_unpackhi_epi8(high, zero), wh, wl);
    }
    const __m256i r = _mm256_packus_epi16(_mm256_packs_epi32(Join(h[0], l[0]), Join(h[1], l[1])),
                                          _mm256_packs_epi32(Join(h[2], l[2]), Join(h[3], l[3])));
    if (x + 32 <= bytes) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + x), r);
    } else {
      alignas(32) uint8_t last[32];
      _mm256_store_si256(reinterpret_cast<__m256i*>(last), r);
      std::memcpy(dst + x, last, bytes - x);
    }
  }
}
#endif
}  // namespace

void ResizeOwn(const Job& j, bool allow_simd) {
  auto rows_fn = RowsScalar;
  auto blend_fn = BlendScalar;
#if defined(__x86_64__)
  if (allow_simd && __builtin_cpu_supports("avx2")) rows_fn = RowsAvx2, blend_fn = BlendAvx2;
#endif
  const Axis ax = MakeAxis(j.src_w, j.x, j.w, j.dst_w), ay = MakeAxis(j.src_h, j.y, j.h, j.dst_h);
  const size_t in_bytes = 3 * static_cast<size_t>(j.src_w), out_bytes = 3 * static_cast<size_t>(j.dst_w);
  const size_t pitch = (out_bytes + 63) & ~size_t{31};
  const int ring = ay.taps + 4, last_row = ay.first[j.dst_h - 1] + ay.count[j.dst_h - 1] - 1;
  std::vector<uint8_t> lines(ring * pitch), padded(4 * (in_bytes + 16));
  const uint8_t* const end = j.src + j.src_h * in_bytes;
  std::vector<const uint8_t*> window(ay.taps);
  int next = ay.first[0];
  for (int y = 0; y < j.dst_h; ++y) {
    const int stop = ay.first[y] + ay.count[y];
    while (next < stop) {  // four rows at a time, ahead of need; a row past the last repeats it
      const uint8_t* src[4];
      uint8_t* dst[4];
      for (int i = 0; i < 4; ++i) {
        const int row = std::min(next + i, last_row);
        src[i] = j.src + row * in_bytes;
        dst[i] = &lines[row % ring * pitch];
        if (end - src[i] < static_cast<ptrdiff_t>(in_bytes + 16)) {  // a vector read would leave the image
          uint8_t* copy = &padded[i * (in_bytes + 16)];
          std::memcpy(copy, src[i], in_bytes);
          src[i] = copy;
        }
      }
      rows_fn(ax, j.dst_w, src, dst);
      next += 4;
    }
    for (int k = 0; k < ay.taps; ++k)
      window[k] = &lines[(ay.first[y] + std::min(k, ay.count[y] - 1)) % ring * pitch];
    blend_fn(ay, y, window.data(), j.dst + y * out_bytes, static_cast<int>(out_bytes));
  }
}
