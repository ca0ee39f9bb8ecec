// SPDX-License-Identifier: Apache-2.0
// Decodes JPEG. In: a file's bytes. Out: the RGB pixels of a region, bit-identical to decoding the whole
// image.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "server/image/image.h"

namespace pinfeed {

// Purpose: decodes one JPEG file after another with libjpeg-turbo, configured like Pillow (accurate integer
// IDCT, fancy upsampling).
// Owns: the library's state and the returned pixels. Borrows: the file's bytes, from Open until Decode
// returns. Threads: one at a time.
// Errors: kDataLoss for what libjpeg rejects up to the end marker, and for truncated files;
// kResourceExhausted for what CheckDecodedSize rejects and for more than kMaxScans scans. As in Pillow,
// damaged entropy data that only causes a libjpeg warning is accepted, and so is an end marker that comes too
// early: pixels behind it are gray. A missing end marker is an error in a file with several scans, or if
// libjpeg needs what would be behind the file's end. Invariant: whether a file is rejected does not depend on
// the region, nor on who decodes it (CheckPlain).
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  Result<ImageHeader> Open(std::span<const std::byte> file);
  // Returns the pixels of `region`. The view is valid until the next call of Open. Preconditions: Open
  // succeeded just before; `region` is not empty and lies within the image.
  Result<ImageView> Decode(const Box& region);

  // The bytes of the file if hardware can decode it: a plain file (JpegMarkers) of gray or YCbCr pixels in a
  // usual sampling. Otherwise 0. Precondition: Open succeeded just before.
  size_t PlainBytes() const;
  // Returns the error with which Decode would reject the file. Preconditions: PlainBytes() > 0; Decode was
  // not called since Open, and is not called before the next one.
  Status CheckPlain();

  ImageBuffer& pixels();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pinfeed
