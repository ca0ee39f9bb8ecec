// SPDX-License-Identifier: Apache-2.0
// Decodes an image file to pixels. In: the bytes of a JPEG, PNG or WebP file. Out: the RGB pixels of a region
// of the image as displayed.
#pragma once

#include <cstddef>
#include <span>

#include "server/image/image.h"
#include "server/image/jpeg.h"
#include "server/image/png.h"
#include "server/image/webp.h"

namespace pinfeed {

// Purpose: decodes one file after another. The first bytes determine the format, never a name. Pixels equal
// those of PIL.ImageOps.exif_transpose(Image.open(file)).convert("RGB"), except as noted at PngDecoder.
// Owns: decoder state and pixel memory. Borrows: the file's bytes, from Open until Decode returns. Threads:
// one at a time.
// Errors: kDataLoss for a damaged file or one that is not an image; kResourceExhausted for one that is too
// large (CheckDecodedSize).
class ImageDecoder {
 public:
  // Returns the size as displayed. `oriented` applies the EXIF orientation; otherwise the image is decoded as
  // stored.
  Result<ImageSize> Open(std::span<const std::byte> file, bool oriented = true);
  // Returns the pixels of `region` of the displayed image. The view is valid until the next call of Open.
  // Preconditions: Open succeeded just before; the region is not empty and lies within the image.
  Result<ImageView> Decode(const Box& region);

  // The bytes of the file that hardware needs to decode it: JpegDecoder::PlainBytes, 0 for an image that is
  // to be oriented or no JPEG. / JpegDecoder::CheckPlain.
  size_t PlainBytes() const;
  Status CheckPlain() { return jpeg_.CheckPlain(); }

  // Frees pixel memory above `bytes` per buffer, so that one huge image does not occupy memory forever.
  // Invalidates the view from Decode.
  void Trim(size_t bytes);

 private:
  enum class Format { kJpeg, kPng, kWebp };
  Format format_ = Format::kJpeg;
  ImageHeader header_;  // its orientation is 1 unless the image is to be oriented
  JpegDecoder jpeg_;
  PngDecoder png_;
  WebpDecoder webp_;
  ImageBuffer oriented_;
};

}  // namespace pinfeed
