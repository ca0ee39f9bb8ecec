// SPDX-License-Identifier: Apache-2.0
// From an encoded file to pixels. In: the bytes of a JPEG or PNG file. Out: the RGB pixels of a region of the
// image as it is displayed.
#pragma once

#include <cstddef>
#include <span>

#include "server/image/image.h"
#include "server/image/jpeg.h"
#include "server/image/png.h"

namespace pinfeed {

// Purpose: decodes files one after the other; the format is told by the first bytes, never by a name. Pixels
// equal those of PIL.ImageOps.exif_transpose(Image.open(file)).convert("RGB"), with the exceptions that
// PngDecoder names. Owns: decoder state and pixel memory. Borrows: the file's bytes from Open until Decode
// has returned. Threads: one at a time. Errors: kDataLoss for what is no image or a damaged one,
// kResourceExhausted for one that is too large (CheckDecodedSize).
class ImageDecoder {
 public:
  struct Size {
    int32_t width = 0;  // as displayed
    int32_t height = 0;
  };
  // `oriented`: as its EXIF orientation says; else as it is stored.
  Result<Size> Open(std::span<const std::byte> file, bool oriented = true);
  // The pixels of `region` of the displayed image; the view is valid until the next call of Open.
  // Preconditions: Open succeeded just before; the region is not empty and lies within the image.
  Result<ImageView> Decode(const Box& region);

  // Gives back pixel memory beyond `bytes` a buffer, so that one giant image does not stay for ever. Ends the
  // view that Decode returned.
  void Trim(size_t bytes);

 private:
  enum class Format { kJpeg, kPng };
  Format format_ = Format::kJpeg;
  int32_t stored_width_ = 0;
  int32_t stored_height_ = 0;
  int orientation_ = 1;
  JpegDecoder jpeg_;
  PngDecoder png_;
  ImageBuffer oriented_;
};

// The whole image, displayed. The view is valid until `decoder` is used again.
Result<ImageView> DecodeImage(std::span<const std::byte> file, ImageDecoder& decoder);

}  // namespace pinfeed
