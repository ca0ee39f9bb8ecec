// SPDX-License-Identifier: Apache-2.0
// Decodes WebP. In: a file's bytes. Out: its RGB pixels.
#pragma once

#include <cstddef>
#include <span>

#include "server/image/image.h"

namespace pinfeed {

// Purpose: decodes one WebP file after another with libwebp, lossy or lossless, configured like Pillow. Alpha
// is dropped without compositing. Owns: the returned pixels. Borrows: the file's bytes, from Open until
// Decode returns. Threads: one at a time. Errors: kDataLoss for what libwebp rejects, for truncated files,
// and for animations, which have no single picture; kResourceExhausted for what CheckDecodedSize rejects, and
// if there is no memory.
class WebpDecoder {
 public:
  // The orientation is that of the first EXIF chunk, and is looked for only if `oriented`.
  Result<ImageHeader> Open(std::span<const std::byte> file, bool oriented);
  // Decodes the whole image: the chroma of a pixel depends on its neighbours. The view is valid until the
  // next call of Open. Precondition: Open succeeded just before.
  Result<ImageView> Decode();

  ImageBuffer& pixels() { return pixels_; }

 private:
  std::span<const std::byte> picture_;  // the chunks of its pixels and of its alpha
  int32_t width_ = 0;
  int32_t height_ = 0;
  bool has_planes_ = false;  // of whole images besides the output: lossless pixels, or alpha
  ImageBuffer pixels_;
};

}  // namespace pinfeed
