// SPDX-License-Identifier: Apache-2.0
#include "server/image/png_orientation.h"

#include <zlib.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/base/quote.h"
#include "server/image/exif.h"

namespace pinfeed {
namespace {

constexpr std::string_view kRawProfile = "Raw profile type exif";
constexpr std::string_view kXmp = "XML:com.adobe.xmp";
constexpr size_t kMaxTextBytes = size_t{1} << 20;
constexpr size_t kMaxAllTextBytes = size_t{64} << 20;  // total of all chunks, as in Pillow

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Removes the first word of `text` with its NUL and returns it; empty when there is no NUL.
std::optional<std::string_view> TakeWord(std::string_view& text) {
  const size_t end = text.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end + 1);
  return word;
}

// Purpose: inflates the text chunks of one file, and keeps all text within the limits.
class TextInflater {
 public:
  // Accepts a stream that ends early. Empty when the data is damaged.
  Result<std::optional<std::string>> Inflate(std::string_view data);
  // Adds text that is not inflated to the total. kResourceExhausted: that is too much.
  Status Count(size_t bytes);

 private:
  std::string buffer_;
  size_t total_ = 0;
};

Result<std::optional<std::string>> TextInflater::Inflate(std::string_view data) {
  z_stream stream{};
  if (::inflateInit(&stream) != Z_OK) return ResourceExhausted("PNG: no memory to inflate text");
  buffer_.resize(kMaxTextBytes + 1);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));  // zlib does not write to it
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(buffer_.data());
  stream.avail_out = static_cast<uInt>(buffer_.size());
  const int ended = ::inflate(&stream, Z_FINISH);
  const size_t size = buffer_.size() - stream.avail_out;
  ::inflateEnd(&stream);
  if (size > kMaxTextBytes)
    return ResourceExhausted(
        "PNG: text about its orientation inflates to more than 1 MiB; remove this metadata");
  RETURN_IF_ERROR(Count(size));
  if (ended != Z_STREAM_END && ended != Z_BUF_ERROR) return std::optional<std::string>();
  return std::optional<std::string>(buffer_.substr(0, size));
}

Status TextInflater::Count(size_t bytes) {
  total_ += bytes;
  if (total_ <= kMaxAllTextBytes) return OkStatus();
  return ResourceExhausted("PNG: text about its orientation has more than 64 MiB; remove this metadata");
}

// A text that may say the orientation. Not copied from the file: it may be almost all of it.
struct OrientationText {
  std::optional<std::string_view> text;  // in the file, or in `inflated`
  std::string inflated;
};

struct OrientationSources {
  bool exif = false;
  std::span<const std::byte> tiff;
  OrientationText profile;
  OrientationText xmp;
  TextInflater inflater;
};

// Reads a tEXt, zTXt or iTXt chunk. Ignores text that Pillow ignores.
Status ReadText(const PngChunk& chunk, OrientationSources& sources) {
  std::string_view rest = Text(chunk.data);
  const std::optional<std::string_view> name = TakeWord(rest);
  if (!name || (*name != kRawProfile && *name != kXmp)) return OkStatus();
  std::optional<std::string> inflated;
  if (chunk.Is("zTXt")) {
    if (!rest.empty() && rest[0] != '\0') return DataLoss("PNG: a zTXt chunk has an unknown compression");
    ASSIGN_OR_RETURN(inflated, sources.inflater.Inflate(rest.empty() ? rest : rest.substr(1)));
    if (!inflated) inflated = "";
  } else if (chunk.Is("iTXt")) {
    if (rest.size() < 2) return OkStatus();
    const bool compressed = rest[0] != '\0';
    const bool known = rest[1] == '\0';
    rest.remove_prefix(2);
    const std::optional<std::string_view> language = TakeWord(rest);
    const std::optional<std::string_view> translated = TakeWord(rest);
    if (!translated || (compressed && !known)) return OkStatus();
    if (compressed) {
      ASSIGN_OR_RETURN(inflated, sources.inflater.Inflate(rest));
      if (!inflated) return OkStatus();
    }
    if (!IsUtf8(inflated ? *inflated : rest) || !IsUtf8(*language) || !IsUtf8(*translated)) return OkStatus();
  }
  if (!inflated) RETURN_IF_ERROR(sources.inflater.Count(rest.size()));
  OrientationText& source = *name == kXmp ? sources.xmp : sources.profile;
  source.text = rest;
  if (inflated) source.text = source.inflated = *std::move(inflated);
  return OkStatus();
}

Status Read(const PngChunks& chunks, size_t begin, size_t end, OrientationSources& sources) {
  for (size_t i = begin; i < end; ++i) {
    const PngChunk& chunk = chunks.all()[i];
    if (chunk.Is("eXIf")) {
      sources.exif = true;
      sources.tiff = chunk.data;
    } else if (chunk.Is("tEXt") || chunk.Is("zTXt") || chunk.Is("iTXt")) {
      RETURN_IF_ERROR(ReadText(chunk, sources));
    }
  }
  return OkStatus();
}

// Decodes a profile in ImageMagick's format: hexadecimal digits after three lines. Empty when it is
// malformed.
std::vector<std::byte> RawProfile(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 2);
  int high = -1;
  for (const char c : text) {
    if (c == '\n' || (high < 0 && (c == ' ' || (c >= '\t' && c <= '\r')))) continue;
    const int value = digit(c);
    if (value < 0) return {};
    if (high >= 0) bytes.push_back(static_cast<std::byte>(high << 4 | value));
    high = high >= 0 ? -1 : value;
  }
  if (high >= 0) return {};
  return bytes;
}

// Finds tiff:Orientation="6" or <tiff:Orientation>6</..., the first with a digit.
int XmpOrientation(std::string_view xmp) {
  static constexpr std::string_view kName = "tiff:Orientation";
  for (size_t at = xmp.find(kName); at != std::string_view::npos; at = xmp.find(kName, at + 1)) {
    std::string_view value = xmp.substr(at + kName.size());
    const size_t skipped = value.substr(0, 2) == "=\"" ? 2 : value.substr(0, 1) == ">" ? 1 : 0;
    if (skipped == 0 || value.size() == skipped || value[skipped] < '0' || value[skipped] > '9') continue;
    const int orientation = value[skipped] - '0';
    return orientation >= 1 && orientation <= 8 ? orientation : 1;
  }
  return 1;
}

}  // namespace

Result<int> PngOrientation(const PngChunks& chunks) {
  OrientationSources sources;
  RETURN_IF_ERROR(Read(chunks, 0, chunks.pixels_begin(), sources));
  RETURN_IF_ERROR(Read(chunks, chunks.pixels_end(), chunks.all().size(), sources));
  std::optional<int> orientation;
  if (sources.exif) {
    orientation = TiffOrientation(sources.tiff);
  } else if (sources.profile.text) {
    const std::vector<std::byte> profile = RawProfile(*sources.profile.text);
    orientation = TiffOrientation(WithoutExifId(profile));
  }
  if (orientation) return *orientation;
  return sources.xmp.text ? XmpOrientation(*sources.xmp.text) : 1;
}

}  // namespace pinfeed
