// SPDX-License-Identifier: Apache-2.0
// What SampleScratch keeps for the loader's programs, and how they load with it when memory is short.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "common/base/log.h"
#include "server/loading/feed_share.h"
#include "server/loading/image_source.h"
#include "server/loading/sample_loader.h"
#include "server/memory/host_memory_ledger.h"
#include "server/transform/mask.h"

namespace pinfeed {

struct SampleScratch::Buffers {
  std::vector<std::byte> encoded;  // rows, a tensor to be seen as an image, or a mask
  std::vector<std::byte> pixels;   // of the output's size, to be packed
  ImageSource::Scratch image;
  ImageBuffer widened;
  GeometryPlan plan;
  GeometryScratch geometry;
  MaskScratch mask;

  // Gives back what is larger.
  void Trim(size_t kept_bytes) {
    if (encoded.capacity() > kept_bytes) std::vector<std::byte>().swap(encoded);
    if (pixels.capacity() > kept_bytes) std::vector<std::byte>().swap(pixels);
    image.Trim(kept_bytes);
    widened.Trim(kept_bytes);
    geometry.Trim(kept_bytes);
  }
};

// How much a sample takes is its file's word: for want of that much, one sample is bad, not the daemon.
inline Status NoMemory() {
  return ResourceExhausted(
      "no memory to read, decode or transform the sample (std::bad_alloc): give the daemon more, or fewer "
      "workers");
}

// What one giant sample made larger is given back after it, and all of it where memory is short.
inline void TrimAfter(const LargeSamples::Attempts& attempts, SampleScratch& scratch) {
  const FeedShare* const share = scratch.share();
  const bool is_short = attempts.refused() || (share != nullptr && share->memory_is_short);
  scratch.buffers().Trim(is_short ? 0 : HostMemoryLedger::kKeptBufferBytes);
}

// Loads a field of a sample, once more and alone if other large samples had the memory meanwhile. `load`
// writes nothing that a second call could not write again when it fails for want of memory.
template <typename Load>
Status WithMemory(SampleScratch& scratch, const Load& load) {
  FeedShare* const share = scratch.share();
  const auto waiting = [share] {
    if (share != nullptr && share->WaitForMemory())
      spdlog::warn(
          "feed {}: large samples wait for memory; while they do, such feeds have half of the workers "
          "together",
          share->feed);
  };
  LargeSamples::Attempts attempts(HostMemoryLedger::ForThisProcess().large_samples());
  Status status;
  while (true) {
    try {
      status = load();
    } catch (const std::bad_alloc&) {
      attempts.Refuse();
      status = NoMemory();
    }
    TrimAfter(attempts, scratch);
    if (status.ok() && !attempts.refused() && share != nullptr) share->HadMemory();
    if (status.ok() || !attempts.Again(waiting)) return status;
  }
}

}  // namespace pinfeed
