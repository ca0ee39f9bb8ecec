// SPDX-License-Identifier: Apache-2.0
// The images of a feed that the client's GPU decodes. In: an image file. Out: its bytes and a plan, or, of an
// image that the workers decode, its pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/spec/feed_spec.h"
#include "common/spec/tensor_spec.h"
#include "server/loading/sample_loader.h"
#include "server/loading/sample_places.h"
#include "server/transform/deferred_pixel_ops.h"
#include "server/transform/pointwise.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

// Larger files are decoded by the workers, unless the output's pixels take as many bytes.
inline constexpr uint64_t kMinEncodedBytes = uint64_t{256} << 10;

// Purpose: writes the image of one sample, its plan and its mark. Threads: immutable. Errors: those of a
// sample that the workers decode: the same files are bad. Invariant: which side decodes a sample is a
// function of the sample and the spec alone.
class GpuDecodeProgram {
 public:
  // Changes `outputs` to what the slot gets: the image is packed bytes, and a plan and a mark are added.
  // Precondition: `ops` describes uint8 pixels in HWC order, which its kernel makes the output of.
  GpuDecodeProgram(const FeedSpec& spec, DeferredPixelOps& ops, std::vector<TensorSpec>& outputs);

  // `buffers` hold the file.
  Status Load(const SampleKey& key, const TransformChain& transforms, const SamplePlaces& places,
              SampleScratch::Buffers& buffers) const;

 private:
  // Whether the GPU decodes the sample, if its file allows that.
  bool IsForGpu(const SampleKey& key) const;
  // Writes the pixels of the opened image.
  Status LoadPixels(ImageSize size, const SamplePlaces& places, SampleScratch::Buffers& buffers) const;

  const uint64_t seed_;
  const uint32_t share_;
  const bool oriented_;
  const size_t image_, plan_, mark_;  // tensors
  const size_t height_, width_, channels_;
  const uint64_t capacity_;  // bytes of a sample
  const Pointwise as_is_;    // for pixels
};

// What a feed's images get. `note` says why AUTO became CPU, else it is empty.
struct DecodeChoice {
  Decode decode = Decode::kCpu;
  uint32_t gpu_share = 0;
  std::string note;
};

// The workers of `workers` that may load at once for a feed whose images a client decodes, on a host with
// `cpus` processors. Of the feed's job, `ranks` share both. Precondition: ranks > 0.
uint32_t WorkersBesideDecoders(uint32_t workers, uint32_t cpus, uint32_t ranks);

// Decides what `spec` leaves open: a share with which `workers` threads and a GPU finish together, or the CPU
// if the GPU cannot decode for this feed. `no_decoder` says why the client cannot; empty: it can. Errors:
// kInvalidArgument or kFailedPrecondition if the spec asks for the GPU and it cannot decode.
Result<DecodeChoice> ChooseDecode(const FeedSpec& spec, const Dataset& dataset, const std::string& no_decoder,
                                  uint32_t workers);

}  // namespace pinfeed
