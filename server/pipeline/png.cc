// SPDX-License-Identifier: Apache-2.0
#include "server/pipeline/png.h"

#include <cstring>
#include <string>

#include "server/pipeline/exif.h"

namespace pinfeed {
namespace {

// Chunks that are not pixels (text, colour profiles) are inflated by libspng: this bounds one of them, and
// all together.
constexpr size_t kMaxChunkBytes = size_t{16} << 20;
constexpr size_t kMaxChunksBytes = size_t{64} << 20;

Status SpngFailure(int error) {
  if (error == SPNG_IO_EOF || error == SPNG_EOF) return DataLoss("PNG file is truncated");
  const std::string message =
      std::string("PNG: ") + spng_strerror(error) + " (spng error " + std::to_string(error) + ")";
  return error == SPNG_EMEM || error == SPNG_ECHUNK_LIMITS ? ResourceExhausted(message) : DataLoss(message);
}

uint32_t BigEndian32(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

// The eXIf chunk may lie behind the pixels, so the chunks are walked here; libspng checks them when it comes
// to them.
int PngOrientation(std::span<const std::byte> file) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(file.data());
  size_t at = 8;
  while (file.size() - at >= 12) {
    const size_t length = BigEndian32(bytes + at);
    if (length > file.size() - at - 12) return 1;
    if (std::memcmp(bytes + at + 4, "eXIf", 4) == 0) return ExifOrientation(file.subspan(at + 8, length));
    at += 12 + length;
  }
  return 1;
}

}  // namespace

Result<PngDecoder::Header> PngDecoder::Open(std::span<const std::byte> file) {
  context_.reset(spng_ctx_new(0));
  if (!context_) return ResourceExhausted("no memory for the PNG decoder");
  spng_ctx* const context = context_.get();
  spng_set_crc_action(context, SPNG_CRC_ERROR, SPNG_CRC_ERROR);
  spng_set_chunk_limits(context, kMaxChunkBytes, kMaxChunksBytes);
  if (const int error = spng_set_png_buffer(context, file.data(), file.size()); error != SPNG_OK)
    return SpngFailure(error);
  spng_ihdr header{};
  if (const int error = spng_get_ihdr(context, &header); error != SPNG_OK) return SpngFailure(error);
  RETURN_IF_ERROR(CheckDecodedSize("PNG", header.width, header.height));
  width_ = static_cast<int32_t>(header.width);
  height_ = static_cast<int32_t>(header.height);
  return Header{width_, height_, PngOrientation(file)};
}

Result<ImageView> PngDecoder::Decode() {
  ASSIGN_OR_RETURN(uint8_t* const out, pixels_.Reserve(width_, height_));
  const size_t stride = 3 * static_cast<size_t>(width_);
  const size_t bytes = stride * static_cast<size_t>(height_);
  int error = spng_decode_image(context_.get(), out, bytes, SPNG_FMT_RGB8, 0);
  // Up to the end marker: the checksum of the last pixels lies behind them.
  if (error == SPNG_OK) error = spng_decode_chunks(context_.get());
  context_.reset();
  if (error != SPNG_OK) return SpngFailure(error);
  return ImageView{out, width_, height_, stride};
}

}  // namespace pinfeed
