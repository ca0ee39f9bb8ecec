// SPDX-License-Identifier: Apache-2.0
// Which source pixels make an output pixel, along one axis, and with which weights. In: an axis. Out: the
// same taps as the daemon's resampler (server/image/resize.cc), with weights in 32-bit floating point.
#pragma once

#include "client/kernels/decode_images.h"

namespace pinfeed {

// The taps of one output: the pixels [first, first + count) of the region.
struct Taps {
  int32_t first;
  int32_t count;
  float offset;  // tap k is at (k + offset) * step from the filter's centre
  float step;
  float scale;  // 1 / the sum of the weights
};

template <uint32_t kInterpolation>
__device__ inline float FilterAt(float x) {
  x = fabsf(x);
  if (kInterpolation == kInterpolateBilinear) return fmaxf(0.0f, 1.0f - x);
  if (kInterpolation == kInterpolateBicubic) {
    // R. Keys, "Cubic convolution interpolation for digital image processing", 1981, with a = -0.5.
    if (x < 1.0f) return (1.5f * x - 2.5f) * x * x + 1.0f;
    return x < 2.0f ? (((x - 5.0f) * x + 8.0f) * x - 4.0f) * -0.5f : 0.0f;
  }
  if (kInterpolation == kInterpolateLanczos) {
    if (x < 1e-4f) return 1.0f;
    if (x >= 3.0f) return 0.0f;
    const float angle = 3.14159265f * x;
    return sinf(angle) / angle * (sinf(angle / 3.0f) / (angle / 3.0f));
  }
  return 1.0f;
}

__device__ constexpr double Reach(uint32_t interpolation) {
  return interpolation == kInterpolateBilinear ? 1 : interpolation == kInterpolateBicubic ? 2 : 3;
}

__device__ constexpr bool HasNegativeWeights(uint32_t interpolation) {
  return interpolation == kInterpolateBicubic || interpolation == kInterpolateLanczos;
}

// The source pixel of output i. Adds up the scale from the first output's centre, like the daemon, so that
// both round alike.
__device__ inline int32_t NearestTo(const ImageAxis& axis, int32_t i) {
  const double scale = double(axis.region) / axis.resized;
  const int32_t steps = axis.reverse ? axis.resized - 1 - i : i;
  double at = scale * 0.5;
  for (int32_t k = 0; k < steps; ++k) at += scale;
  const int32_t from = min(int32_t(at), axis.region - 1);
  return axis.reverse ? axis.region - 1 - from : from;
}

// Of output i of the resized region.
template <uint32_t kInterpolation>
__device__ inline Taps TapsOf(const ImageAxis& axis, int32_t i) {
  if (axis.region == axis.resized) return {i, 1, 0, 0, 1};
  if (kInterpolation == kInterpolateNearest) return {NearestTo(axis, i), 1, 0, 0, 1};
  const double scale = double(axis.region) / axis.resized;
  const double filter_scale = scale > 1 ? scale : 1;
  const double support = Reach(kInterpolation) * filter_scale;
  const double centre = (i + 0.5) * scale;
  Taps taps;
  taps.first = max(0, int32_t(centre - support + 0.5));
  taps.count = min(axis.region, int32_t(centre + support + 0.5)) - taps.first;
  taps.offset = float(taps.first - centre + 0.5);
  taps.step = float(1 / filter_scale);
  float sum = 0;
  for (int32_t k = 0; k < taps.count; ++k) sum += FilterAt<kInterpolation>((k + taps.offset) * taps.step);
  taps.scale = 1 / sum;
  return taps;
}

template <uint32_t kInterpolation>
__device__ inline float Weight(const Taps& taps, int32_t k) {
  return FilterAt<kInterpolation>((k + taps.offset) * taps.step) * taps.scale;
}

}  // namespace pinfeed
