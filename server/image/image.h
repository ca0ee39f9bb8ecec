// SPDX-License-Identifier: Apache-2.0
// The pixel format of decoded and transformed images: RGB, 8 bits per channel, rows of 3 * width bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {

// Readable bytes after the last row of every image, so that vector loads may read past the end.
inline constexpr size_t kRowSlack = 64;

struct ImageSize {
  int32_t width = 0;
  int32_t height = 0;
};

// What the decoder of a format says of a file before it decodes it.
struct ImageHeader {
  int32_t width = 0;  // as stored
  int32_t height = 0;
  int orientation = 1;  // of the file's EXIF; 1 if there is none
};

// A rectangle of pixels. x and y may be negative where a crop extends beyond the image.
struct Box {
  int32_t x = 0;
  int32_t y = 0;
  int32_t width = 0;
  int32_t height = 0;
  bool operator==(const Box&) const = default;
};

// Purpose: a read-only view of pixels. Borrows them. Invariant: kRowSlack bytes after the last row are
// readable.
struct ImageView {
  const uint8_t* data = nullptr;
  int32_t width = 0;
  int32_t height = 0;
  size_t stride = 0;  // bytes from one row to the next; negative (modulo 2^64) when upside down

  const uint8_t* Row(int32_t y) const { return data + ptrdiff_t{y} * static_cast<ptrdiff_t>(stride); }
  // The same rows in reverse order. Bytes after its last row must not be read.
  ImageView UpsideDown() const { return {Row(height - 1), width, height, 0 - stride}; }
  // Precondition: the box lies within the image.
  ImageView Crop(const Box& box) const {
    return {Row(box.y) + 3 * static_cast<size_t>(box.x), box.width, box.height, stride};
  }
};

// Writes the rows of `image` to `out`, one behind the other. Where they lie so already, in one copy, which is
// much faster than one of each row.
inline void CopyPixels(const ImageView& image, uint8_t* out) {
  const size_t row = 3 * static_cast<size_t>(image.width);
  const auto rows = static_cast<size_t>(image.height);
  if (image.stride == row) {
    std::memcpy(out, image.data, rows * row);
    return;
  }
  for (int32_t y = 0; y < image.height; ++y)
    std::memcpy(out + static_cast<size_t>(y) * row, image.Row(y), row);
}

// Purpose: memory for one image, reused for each sample. Owns the memory. Threads: one at a time. Errors:
// kResourceExhausted when the image exceeds kMaxImagePixels or memory is exhausted.
class ImageBuffer {
 public:
  // Returns memory for width * height pixels with unspecified contents; earlier contents are lost.
  // Precondition: width, height >= 0.
  Result<uint8_t*> Reserve(int32_t width, int32_t height) {
    ASSIGN_OR_RETURN(const Memory memory, Ask(width, height, 0));
    return Reserve(width, height, memory);
  }
  using Memory = std::optional<HostMemoryLedger::Reservation>;
  // Asks the host for the memory of the image and for `besides` bytes that are taken at the same time. Keep
  // the result until all of both was written to. Frees the buffer if it is too small.
  Result<Memory> Ask(int32_t width, int32_t height, uint64_t besides) {
    if (int64_t{width} * height > kMaxImagePixels) {
      return ResourceExhausted("an image of " + std::to_string(width) + " x " + std::to_string(height) +
                               " pixels is over the limit of " + std::to_string(kMaxImagePixels) + " pixels");
    }
    const uint64_t bytes = BytesOf(width, height);
    if (bytes > capacity_) Release();
    return HostMemoryLedger::ForThisProcess().ReserveForSample((bytes > capacity_ ? bytes : 0) + besides);
  }
  // With what was asked for it.
  Result<uint8_t*> Reserve(int32_t width, int32_t height, const Memory& memory) {
    const size_t bytes = BytesOf(width, height);
    if (bytes > capacity_) {
      data_.reset(new (std::nothrow) uint8_t[bytes]);
      if (data_ == nullptr)
        return ResourceExhausted("no memory for an image of " + std::to_string(bytes) + " bytes");
      capacity_ = bytes;
      constexpr size_t kPage = 4096;
      for (size_t at = 0; memory && at < bytes; at += kPage) data_[at] = 0;
    }
    return data_.get();
  }
  // Frees the memory if it is larger than `bytes`.
  void Trim(size_t bytes) {
    if (capacity_ > bytes) Release();
  }

 private:
  static size_t BytesOf(int32_t width, int32_t height) {
    return 3 * static_cast<size_t>(width) * static_cast<size_t>(height) + kRowSlack;
  }
  void Release() {
    data_.reset();
    capacity_ = 0;
  }

  std::unique_ptr<uint8_t[]> data_;
  size_t capacity_ = 0;
};

// Checks that an image of the size in its file's header may be decoded. kResourceExhausted names what is too
// large, and the limit.
inline Status CheckDecodedSize(const std::string& format, int64_t width, int64_t height) {
  const std::string image =
      format + " of " + std::to_string(width) + " x " + std::to_string(height) + " pixels";
  for (const int64_t side : {width, height}) {
    if (side <= kMaxImageSide) continue;
    return ResourceExhausted(image + ": its " + (side == width ? "width" : "height") +
                             " is over the limit of " + std::to_string(kMaxImageSide) + " pixels a side");
  }
  if (width * height <= kMaxImagePixels) return OkStatus();
  return ResourceExhausted(image + " is over the limit of " + std::to_string(kMaxImagePixels) + " pixels");
}

}  // namespace pinfeed
