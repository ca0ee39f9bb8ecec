// SPDX-License-Identifier: Apache-2.0
#include "server/image/webp.h"

#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <optional>
#include <string>

#include "common/base/unique_handle.h"
#include "server/image/exif.h"
#include "server/image/webp_groups.h"

namespace pinfeed {
namespace {

constexpr int kLossless = 2;              // WebPBitstreamFeatures::format
constexpr uint64_t kPlanesBytes = 4 + 1;  // for a pixel: of a lossless image, and its alpha
// Lossless pixels and alpha have groups of five prefix codes. Before it decodes, libwebp makes a table of 256
// entries of 4 bytes for each code (src/dec/vp8l_dec.c), and further ones for codes of more than 8 bits,
// which take more of the file. Encoders make some hundred groups; a forged file of 300 KB can have 65,536.
constexpr uint64_t kGroupBytes = 5 * 256 * 4 + 576;
constexpr uint64_t kMoreGroupBytes = 15'000;
constexpr uint64_t kMoreTimesFile = 300;

uint64_t TablesBytes(uint64_t groups, uint64_t file_bytes) {
  return groups * kGroupBytes + std::min(groups * kMoreGroupBytes, file_bytes * kMoreTimesFile);
}

struct DemuxerTraits {
  using Handle = WebPDemuxer*;
  static constexpr WebPDemuxer* Null() { return nullptr; }
  static void Close(WebPDemuxer* demuxer) noexcept { WebPDemuxDelete(demuxer); }
};

const uint8_t* BytesOf(std::span<const std::byte> file) {
  return reinterpret_cast<const uint8_t*>(file.data());
}

Status WebpFailure(VP8StatusCode status) {
  if (status == VP8_STATUS_NOT_ENOUGH_DATA) return DataLoss("WebP file is truncated");
  if (status == VP8_STATUS_OUT_OF_MEMORY) return ResourceExhausted("no memory for the WebP decoder");
  return DataLoss("WebP: the file is damaged (libwebp status " + std::to_string(status) + ")");
}

int OrientationOf(WebPDemuxer* demuxer) {
  WebPChunkIterator exif;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &exif) == 0) return 1;
  const std::span<const std::byte> tiff =
      WithoutExifId(std::as_bytes(std::span(exif.chunk.bytes, exif.chunk.size)));
  const int orientation = TiffOrientation(tiff).value_or(1);
  WebPDemuxReleaseChunkIterator(&exif);
  return orientation;
}

}  // namespace

Result<ImageHeader> WebpDecoder::Open(std::span<const std::byte> file, bool oriented) {
  WebPBitstreamFeatures features;
  if (const VP8StatusCode status = WebPGetFeatures(BytesOf(file), file.size(), &features);
      status != VP8_STATUS_OK)
    return WebpFailure(status);
  if (features.has_animation != 0)
    return DataLoss("WebP: the file is an animation; store the picture that is meant as a file of its own");
  RETURN_IF_ERROR(CheckDecodedSize("WebP", features.width, features.height));
  // Of a whole file WebPDecode also decodes what the demuxer refuses, and reads on behind the image's chunk.
  const WebPData data{BytesOf(file), file.size()};
  const UniqueHandle<DemuxerTraits> demuxer(WebPDemux(&data));
  WebPIterator frame;
  if (!demuxer || WebPDemuxGetFrame(demuxer.get(), 1, &frame) == 0)
    return DataLoss("WebP: the file is truncated or damaged");
  picture_ = std::as_bytes(std::span(frame.fragment.bytes, frame.fragment.size));
  WebPDemuxReleaseIterator(&frame);
  width_ = features.width;
  height_ = features.height;
  has_planes_ = features.format == kLossless || features.has_alpha != 0;
  return ImageHeader{width_, height_, oriented ? OrientationOf(demuxer.get()) : 1};
}

Result<ImageView> WebpDecoder::Decode() {
  const uint64_t pixels = static_cast<uint64_t>(width_) * static_cast<uint64_t>(height_);
  uint64_t besides = 0;
  if (has_planes_) {
    const std::optional<uint64_t> groups =
        CountPrefixCodeGroups(picture_, static_cast<uint32_t>(width_), static_cast<uint32_t>(height_));
    if (!groups) return DataLoss("WebP: the file is truncated or damaged");
    besides = kPlanesBytes * pixels + TablesBytes(*groups, picture_.size());
  }
  ASSIGN_OR_RETURN(const ImageBuffer::Memory memory, pixels_.Ask(width_, height_, besides));
  ASSIGN_OR_RETURN(uint8_t* const out, pixels_.Reserve(width_, height_, memory));
  const size_t stride = 3 * static_cast<size_t>(width_);
  WebPDecoderConfig config;
  PF_CHECK(WebPInitDecoderConfig(&config) != 0, "libwebp has the version of its headers");
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {out, static_cast<int>(stride), 3 * pixels};
  const VP8StatusCode status = WebPDecode(BytesOf(picture_), picture_.size(), &config);
  if (status != VP8_STATUS_OK) return WebpFailure(status);
  return ImageView{out, width_, height_, stride};
}

}  // namespace pinfeed
