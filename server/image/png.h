// SPDX-License-Identifier: Apache-2.0
// Decodes PNG. In: a file's bytes. Out: its RGB pixels.
#pragma once

#include <spng.h>

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/unique_handle.h"
#include "server/image/image.h"
#include "server/image/png_chunks.h"

namespace pinfeed {

struct SpngTraits {
  using Handle = spng_ctx*;
  static constexpr spng_ctx* Null() { return nullptr; }
  static void Close(spng_ctx* context) noexcept { spng_ctx_free(context); }
};

// Purpose: decodes one PNG file after another with libspng. Supports all colour types, depths and
// interlacing. As in Pillow's convert("RGB"), grey is replicated, palettes are resolved, and alpha and tRNS
// are dropped without compositing. Of 16-bit samples, the high byte is used. Pillow does the same for colour,
// but clips 16-bit grey at 255, which makes nearly everything white. As in Pillow, colours missing in a
// palette are black, and data after the pixels is ignored. Checksums of pixel data are verified.
// Owns: the returned pixels. Borrows: the file's bytes, from Open until Decode returns. Threads: one at a
// time.
// Errors: kDataLoss for what libspng rejects in the chunks that pixels depend on, and for wrong checksums
// before and in the pixels; kResourceExhausted for what CheckDecodedSize rejects.
class PngDecoder {
 public:
  // The orientation is that of PngOrientation, and is looked for only if `oriented`.
  Result<ImageHeader> Open(std::span<const std::byte> file, bool oriented);
  // Decodes the whole image. The view is valid until the next call of Open. Precondition: Open succeeded just
  // before.
  Result<ImageView> Decode();

  ImageBuffer& pixels() { return pixels_; }

 private:
  Status Begin(std::span<const std::byte> file);
  Result<ImageView> Run();

  UniqueHandle<SpngTraits> context_;
  PngChunks chunks_;
  int32_t width_ = 0;
  int32_t height_ = 0;
  ImageBuffer pixels_;
};

}  // namespace pinfeed
