// SPDX-License-Identifier: Apache-2.0
#include "server/image/decode.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "server/image/exif.h"

namespace pinfeed {
namespace {

constexpr std::string_view kJpegMagic("\xFF\xD8\xFF", 3);
constexpr std::string_view kPngMagic("\x89PNG\r\n\x1A\n", 8);
constexpr std::string_view kGifMagic("GIF8");
constexpr std::string_view kAppleDoubleMagic("\x00\x05\x16\x07", 4);
constexpr std::string_view kGitLfsStart("version https://git-lfs.github.com/");
constexpr std::string_view kRiffMagic("RIFF");
constexpr std::string_view kWebpMagic("WEBP");
constexpr size_t kWebpMagicOffset = 8;  // behind the RIFF header's size

bool StartsWith(std::span<const std::byte> file, std::string_view magic) {
  return file.size() >= magic.size() && std::memcmp(file.data(), magic.data(), magic.size()) == 0;
}

bool IsWebp(std::span<const std::byte> file) {
  return StartsWith(file, kRiffMagic) &&
         StartsWith(file.subspan(std::min(file.size(), kWebpMagicOffset)), kWebpMagic);
}

Status NotAnImage(std::span<const std::byte> file) {
  if (file.empty()) return DataLoss("the file is empty");
  if (StartsWith(file, kAppleDoubleMagic))
    return DataLoss(
        "it is no image, but what macOS stores beside one; remove such files (find DIR -name '._*' -delete)");
  if (StartsWith(file, kGitLfsStart))
    return DataLoss("it is a pointer of Git LFS in place of an image; fetch the images (git lfs pull)");
  std::string start;
  for (size_t i = 0; i < std::min<size_t>(file.size(), 8); ++i) {
    char hex[4];
    std::snprintf(hex, sizeof hex, " %02x", std::to_integer<unsigned>(file[i]));
    start += hex;
  }
  if (StartsWith(file, kGifMagic)) start += " (GIF)";
  return DataLoss("neither JPEG, PNG nor WebP: the file starts with" + start +
                  "; convert it to one of these, or remove it");
}

}  // namespace

Result<ImageSize> ImageDecoder::Open(std::span<const std::byte> file, bool oriented) {
  if (StartsWith(file, kJpegMagic)) {
    ASSIGN_OR_RETURN(header_, jpeg_.Open(file));
    format_ = Format::kJpeg;
  } else if (StartsWith(file, kPngMagic)) {
    ASSIGN_OR_RETURN(header_, png_.Open(file, oriented));
    format_ = Format::kPng;
  } else if (IsWebp(file)) {
    ASSIGN_OR_RETURN(header_, webp_.Open(file, oriented));
    format_ = Format::kWebp;
  } else {
    return NotAnImage(file);
  }
  if (!oriented) header_.orientation = 1;
  if (OrientationSwapsSides(header_.orientation)) return ImageSize{header_.height, header_.width};
  return ImageSize{header_.width, header_.height};
}

size_t ImageDecoder::PlainBytes() const {
  return format_ == Format::kJpeg && header_.orientation == 1 ? jpeg_.PlainBytes() : 0;
}

Result<ImageView> ImageDecoder::Decode(const Box& region) {
  const Box stored_box = StoredBox(region, header_.orientation, header_.width, header_.height);
  ImageView stored;
  if (format_ == Format::kJpeg) {
    ASSIGN_OR_RETURN(stored, jpeg_.Decode(stored_box));
  } else {
    // PNG is decoded whole: a row depends on the one above it, and the checksums are at the end.
    ASSIGN_OR_RETURN(const ImageView whole, format_ == Format::kPng ? png_.Decode() : webp_.Decode());
    stored = whole.Crop(stored_box);
  }
  if (header_.orientation == 1) return stored;
  ASSIGN_OR_RETURN(uint8_t* const out, oriented_.Reserve(region.width, region.height));
  return Orient(stored, header_.orientation, out);
}

void ImageDecoder::Trim(size_t bytes) {
  for (ImageBuffer* const buffer : {&jpeg_.pixels(), &png_.pixels(), &webp_.pixels(), &oriented_})
    buffer->Trim(bytes);
}

}  // namespace pinfeed
