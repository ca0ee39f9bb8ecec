// SPDX-License-Identifier: Apache-2.0
// What it takes to decode a feed's images on a GPU: decoders for several threads, and device memory from
// which batches are written to the trainer's tensors. An interface: tests decode without a GPU, and the
// library also builds without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/src/gpu/output_memory.h"
#include "client/src/link/offer.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/wire/image_plan.h"

namespace pinfeed {

// An image to be decoded.
struct ImageToDecode {
  std::span<const std::byte> bytes;  // within the thread's staging memory; unchanged until Decode returns
  ImagePlan plan{};                  // of kind kJpeg; a copy: another process may still write the original
  std::byte* out = nullptr;          // device memory for height * width * channels bytes (HWC)
};

// Purpose: what one decode thread uses. Threads: one at a time. Errors: those of the GPU and its driver; then
// the outputs are undefined. Each call returns once its work is complete, as seen by the host.
class DecodeWorker {
 public:
  virtual ~DecodeWorker() = default;
  // Host memory that the GPU reads fast.
  virtual std::span<std::byte> staging() = 0;
  // At most kMaxImages. failures[i] is OK, or says why image i cannot be decoded; its pixels are then zeros.
  virtual Status Decode(std::span<const ImageToDecode> images, std::span<Status> failures) = 0;
  struct Copy {
    const std::byte* from;  // host memory; null: zeros
    std::byte* to;
    uint64_t bytes;
  };
  // What is not in the staging memory is copied by way of it, and overwrites what it holds.
  virtual Status CopyAll(std::span<const Copy> copies) = 0;

  static constexpr uint32_t kMaxImages = 128;
};

// Purpose: device memory for one decoded batch. Threads: one at a time.
class DecodedMemory {
 public:
  virtual ~DecodedMemory() = default;
  virtual std::byte* address() const = 0;
  // Queues the writing of the outputs on `stream`. On an error nothing that it queued runs any more.
  virtual Status Write(uint32_t samples, const OutputMemory& outputs, void* stream) = 0;
  // Whether the GPU has executed everything that Write queued. Never blocks.
  virtual Result<bool> Written() = 0;
  // Leaves the memory to the process's end: the GPU may still read it.
  virtual void Abandon() = 0;
  // Returns a descriptor by which another process writes a batch into it (DecodeEngine::Import).
  // Precondition: it was made as `shared`.
  virtual Result<UniqueFd> Export() const = 0;
};

// Copies a decoded batch into DecodedMemory of another process, which may end at any time. Returns once that
// is complete, as seen by the host. Owns the mapping. Threads: one at a time.
using CopyToForeign = std::function<Status(const std::byte* batch, uint64_t bytes)>;

// Purpose: makes both for one feed's session. Threads: any.
class DecodeEngine {
 public:
  virtual ~DecodeEngine() = default;
  // What decodes, such as "nvJPEG on NVIDIA H100". Another kind may give other pixels, within the tolerance.
  virtual const std::string& kind() const = 0;
  virtual Result<std::unique_ptr<DecodeWorker>> MakeWorker(const OfferedImage& image,
                                                           uint64_t staging_bytes) = 0;
  // `offsets` and `bytes` are the layout of a batch (BatchWriter). The offer outlives the memory. `shared`:
  // with Export.
  virtual Result<std::unique_ptr<DecodedMemory>> MakeMemory(const FeedOffer& offer,
                                                            const std::vector<uint64_t>& offsets,
                                                            uint64_t bytes, bool shared) = 0;
  // Maps what another process on this GPU exported, of `bytes` as MakeMemory got them.
  virtual Result<CopyToForeign> Import(UniqueFd memory, uint64_t bytes) = 0;
};

// Opens the engine of GPU `ordinal`. kUnavailable: the build, the process or the GPU has no decoder; the
// message says which.
Result<std::shared_ptr<DecodeEngine>> OpenDecodeEngine(int ordinal);

}  // namespace pinfeed
