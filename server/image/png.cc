// SPDX-License-Identifier: Apache-2.0
#include "server/image/png.h"

#include <iterator>
#include <string>

#include "server/image/png_orientation.h"

namespace pinfeed {
namespace {

// libspng inflates text and colour profile chunks. These limits bound a single chunk and their total.
constexpr size_t kMaxChunkBytes = size_t{16} << 20;
constexpr size_t kMaxChunksBytes = size_t{64} << 20;

Status SpngFailure(int error) {
  if (error == SPNG_IO_EOF || error == SPNG_EOF) return DataLoss("PNG file is truncated");
  const std::string message =
      std::string("PNG: ") + spng_strerror(error) + " (spng error " + std::to_string(error) + ")";
  return error == SPNG_EMEM || error == SPNG_ECHUNK_LIMITS ? ResourceExhausted(message) : DataLoss(message);
}

// A lower bound of the size of a file with such pixels: deflate makes 258 bytes of 2 bits at best (RFC 1951,
// section 3.2.5), and fewer than 1,100 of a byte with the rest.
uint64_t LeastBytes(const spng_ihdr& header) {
  constexpr uint64_t kMostInflated = 1100;
  constexpr uint8_t kChannels[] = {1, 0, 3, 1, 2, 0, 4};  // by colour type
  const uint64_t bits = uint64_t{header.bit_depth} * kChannels[header.color_type % std::size(kChannels)];
  return uint64_t{header.width} * header.height * bits / 8 / kMostInflated;
}

}  // namespace

Status PngDecoder::Begin(std::span<const std::byte> file) {
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
  if (LeastBytes(header) > file.size())
    return DataLoss("PNG file is truncated: " + std::to_string(file.size()) + " bytes are too few for " +
                    std::to_string(header.width) + " x " + std::to_string(header.height) + " pixels");
  width_ = static_cast<int32_t>(header.width);
  height_ = static_cast<int32_t>(header.height);
  return OkStatus();
}

Result<ImageHeader> PngDecoder::Open(std::span<const std::byte> file, bool oriented) {
  RETURN_IF_ERROR(Begin(file));
  RETURN_IF_ERROR(chunks_.Scan(file));
  if (!oriented) return ImageHeader{width_, height_, 1};
  ASSIGN_OR_RETURN(const int orientation, PngOrientation(chunks_));
  return ImageHeader{width_, height_, orientation};
}

Result<ImageView> PngDecoder::Decode() {
  if (!chunks_.PaletteDiffers()) {
    Result<ImageView> decoded = Run();
    if (decoded.ok()) return decoded;
  }
  // libspng rejects more than Pillow: faults in chunks that no pixel depends on, empty chunks (reported as
  // exhausted memory), and a missing end marker.
  std::vector<std::byte> rewritten;
  RETURN_IF_ERROR(chunks_.Rewrite(rewritten));
  RETURN_IF_ERROR(Begin(rewritten));
  return Run();
}

Result<ImageView> PngDecoder::Run() {
  ASSIGN_OR_RETURN(uint8_t* const out, pixels_.Reserve(width_, height_));
  const size_t stride = 3 * static_cast<size_t>(width_);
  const size_t bytes = stride * static_cast<size_t>(height_);
  int error = spng_decode_image(context_.get(), out, bytes, SPNG_FMT_RGB8, 0);
  // Reads up to the end marker, because the checksum of the last pixels follows them.
  if (error == SPNG_OK) error = spng_decode_chunks(context_.get());
  context_.reset();
  if (error != SPNG_OK) return SpngFailure(error);
  return ImageView{out, width_, height_, stride};
}

}  // namespace pinfeed
