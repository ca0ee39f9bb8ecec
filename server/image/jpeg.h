// SPDX-License-Identifier: Apache-2.0
// JPEG. In: a file's bytes. Out: the RGB pixels of a region, equal bit for bit to what decoding the whole
// image would give there.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "server/image/image.h"

namespace pinfeed {

// Purpose: decodes JPEG files one after the other with libjpeg-turbo, set as Pillow sets it (accurate integer
// IDCT, fancy upsampling). Owns: the library's state and the pixels it returns. Borrows: the file's bytes
// from Open until Decode has returned. Threads: one at a time. Errors: kDataLoss for what libjpeg or the
// check for completeness refuses; kResourceExhausted for what CheckDecodedSize refuses and over kMaxScans. As
// in Pillow, damaged entropy data that libjpeg only warns about is no error, missing pixels are, and so is a
// missing end of a file of several scans. Invariant:
// whether a file is refused does not depend on the region.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  struct Header {
    int32_t width = 0;  // as stored
    int32_t height = 0;
    int orientation = 1;
  };
  Result<Header> Open(std::span<const std::byte> file);
  // The view is valid until the next call of Open. Preconditions: Open succeeded just before; `region` is not
  // empty and lies within the image.
  Result<ImageView> Decode(const Box& region);

  ImageBuffer& pixels();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pinfeed
