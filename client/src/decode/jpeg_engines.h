// SPDX-License-Identifier: Apache-2.0
// A GPU's JPEG engines, and what decodes without them. In: JPEG files. Out: pixels in device memory, whose
// chroma nvJPEG has interpolated.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "client/src/decode/engine_pixels.h"
#include "client/src/decode/image_plan_check.h"
#include "common/base/result.h"
#include "common/cuda/nvjpeg.h"

namespace pinfeed {

// Purpose: decodes files with nvJPEG: many at once on the engines, or one by one without them. Owns nvJPEG's
// handles. Borrows its functions. Threads: one at a time. Precondition of all, destruction included: the
// GPU's context is current.
class JpegEngines {
 public:
  // kUnavailable: the GPU has no engines.
  static Result<JpegEngines> Open(const NvJpeg& api);

  // Reads a file's header, as nvJPEG sees it, which decides what the engines write. kDataLoss for what it
  // cannot read, and for chroma that is not sampled 4:4:4, 4:2:2 or 4:2:0.
  Result<JpegFrame> ReadHeader(std::span<const std::byte> file);
  // Whether the engines decode the file whose header was read last.
  Result<bool> CanDecode();

  struct Work {
    std::span<const std::byte> file;
    nvjpeg::Image output;  // of the whole image: pixels of three bytes
    ImageRegion region;    // that is needed
  };
  // Has the engines decode files that they can decode, and write the regions, or whole images if they refuse
  // regions. They do so at once, whatever `stream` still has to do. Returns false if they refuse; then they
  // have written nothing.
  bool Decode(std::span<const Work> files, CUstream stream);
  // Queues the decoding of a whole file without the engines. `failure` says why it cannot be decoded. An
  // error says nothing of the file: the GPU lacks memory, or its driver fails.
  Status DecodeWithout(Work work, CUstream stream, Status& failure);

 private:
  JpegEngines(const NvJpeg& api, nvjpeg::Decoder engines) : api_(api), engines_(std::move(engines)) {}
  bool AddFile(const Work& work, bool whole);
  bool Call(std::span<const Work> files, bool whole, CUstream stream);

  const NvJpeg& api_;
  nvjpeg::Decoder engines_;
  std::optional<nvjpeg::Decoder> hybrid_;  // empty until a file needs it
  size_t batch_ = 0;                       // that the engines' state is prepared for
  bool whole_images_ = false;              // they have refused regions
  // The arguments of one call.
  std::vector<const unsigned char*> data_;
  std::vector<size_t> sizes_;
  std::vector<nvjpeg::Image> outputs_;
  std::vector<nvjpeg::Params> params_;  // as many as the largest call had
  std::vector<nvjpeg::UniqueParams> owned_params_;
};

}  // namespace pinfeed
