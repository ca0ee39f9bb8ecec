// SPDX-License-Identifier: Apache-2.0
// In: one resize to do. The call that every candidate answers.
#pragma once
#include <cstdint>

struct Job {
  const uint8_t* src;  // interleaved RGB, rows packed
  int src_w, src_h, x, y, w, h;
  uint8_t* dst;  // interleaved or planar, as the candidate says
  int dst_w, dst_h;
};

void ResizeOwn(const Job& job, bool allow_simd);
