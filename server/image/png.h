// SPDX-License-Identifier: Apache-2.0
// PNG. In: a file's bytes. Out: its RGB pixels.
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

// Purpose: decodes PNG files one after the other with libspng. All colour types, depths and interlacing; grey
// is replicated, palettes are looked up, alpha and tRNS are dropped without compositing, as Pillow's
// convert("RGB") does. Of 16-bit samples the high byte is taken (Pillow does so for colour; its 16-bit grey
// clips at 255 instead, which turns nearly all of it white). As in Pillow, colours that a palette lacks are
// grey, and what lies behind the pixels is not looked at; but checksums of pixels are. Owns: the pixels it
// returns. Borrows: the file's bytes from Open until Decode has returned. Threads: one at a time. Errors:
// kDataLoss for what libspng refuses of the chunks that pixels depend on, and for wrong checksums before and
// in the pixels; kResourceExhausted for what CheckDecodedSize refuses.
class PngDecoder {
 public:
  struct Header {
    int32_t width = 0;  // as stored
    int32_t height = 0;
    int orientation = 1;  // see PngOrientation; 1 when it is not `oriented`
  };
  Result<Header> Open(std::span<const std::byte> file, bool oriented);
  // The whole image; the view is valid until the next call of Open. Precondition: Open succeeded just before.
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
