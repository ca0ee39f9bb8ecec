// SPDX-License-Identifier: Apache-2.0
#include "server/image/png_orientation.h"

#include <zlib.h>

#include <algorithm>
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
constexpr size_t kMaxAllTextBytes = size_t{64} << 20;  // of all chunks together, as in Pillow

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Cuts `text` behind its first NUL and returns what stands before it; none when there is no NUL.
std::optional<std::string_view> Word(std::string_view& text) {
  const size_t end = text.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end + 1);
  return word;
}

// Purpose: inflates the text chunks of one file within both limits.
class TextInflater {
 public:
  // What a stream that ends early holds is taken. Nothing when it is damaged.
  Result<std::optional<std::string>> Inflate(std::string_view data);

 private:
  std::string buffer_;
  size_t total_ = 0;
};

Result<std::optional<std::string>> TextInflater::Inflate(std::string_view data) {
  z_stream stream{};
  if (::inflateInit(&stream) != Z_OK) return ResourceExhausted("PNG: no memory to inflate text");
  buffer_.resize(kMaxTextBytes + 1);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));  // which zlib does not write
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(buffer_.data());
  stream.avail_out = static_cast<uInt>(buffer_.size());
  const int ended = ::inflate(&stream, Z_FINISH);
  const size_t size = buffer_.size() - stream.avail_out;
  ::inflateEnd(&stream);
  total_ += size;
  if (size > kMaxTextBytes || total_ > kMaxAllTextBytes)
    return ResourceExhausted("PNG: text about its orientation inflates to more than 1 MiB, or 64 MiB in all");
  if (ended != Z_STREAM_END && ended != Z_BUF_ERROR) return std::optional<std::string>();
  return std::optional<std::string>(buffer_.substr(0, size));
}

struct Said {
  bool exif = false;
  std::span<const std::byte> tiff;
  std::optional<std::string> profile;
  std::optional<std::string> xmp;
  TextInflater inflater;
};

// One of tEXt, zTXt and iTXt. Text that Pillow leaves out is left out.
Status ReadText(const PngChunk& chunk, Said& said) {
  std::string_view rest = Text(chunk.data);
  const std::optional<std::string_view> name = Word(rest);
  if (!name || (*name != kRawProfile && *name != kXmp)) return OkStatus();
  std::optional<std::string> text;
  if (chunk.Is("tEXt")) {
    text = std::string(rest);
  } else if (chunk.Is("zTXt")) {
    if (!rest.empty() && rest[0] != '\0') return DataLoss("PNG: unknown compression of a zTXt chunk");
    ASSIGN_OR_RETURN(text, said.inflater.Inflate(rest.empty() ? rest : rest.substr(1)));
    if (!text) text = "";
  } else {
    if (rest.size() < 2) return OkStatus();
    const bool compressed = rest[0] != '\0';
    const bool known = rest[1] == '\0';
    rest.remove_prefix(2);
    const std::optional<std::string_view> language = Word(rest);
    const std::optional<std::string_view> translated = Word(rest);
    if (!translated || (compressed && !known)) return OkStatus();
    text = std::string(rest);
    if (compressed) {
      ASSIGN_OR_RETURN(text, said.inflater.Inflate(rest));
    }
    if (!text || !IsUtf8(*text) || !IsUtf8(*language) || !IsUtf8(*translated)) return OkStatus();
  }
  (*name == kXmp ? said.xmp : said.profile) = std::move(text);
  return OkStatus();
}

Status Read(const PngChunks& chunks, size_t begin, size_t end, Said& said) {
  for (size_t i = begin; i < end; ++i) {
    const PngChunk& chunk = chunks.all()[i];
    if (chunk.Is("eXIf")) {
      said.exif = true;
      said.tiff = chunk.data;
    } else if (chunk.Is("tEXt") || chunk.Is("zTXt") || chunk.Is("iTXt")) {
      RETURN_IF_ERROR(ReadText(chunk, said));
    }
  }
  return OkStatus();
}

// The bytes that ImageMagick's form of a profile holds: behind three lines, as hexadecimal digits. Empty when
// they are none.
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

// tiff:Orientation="6" or <tiff:Orientation>6</..., the first that has a digit.
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
  Said said;
  RETURN_IF_ERROR(Read(chunks, 0, chunks.pixels_begin(), said));
  if (!said.exif) RETURN_IF_ERROR(Read(chunks, chunks.pixels_end(), chunks.all().size(), said));
  std::optional<int> orientation;
  if (said.exif) {
    orientation = TiffOrientation(said.tiff);
  } else if (said.profile) {
    const std::vector<std::byte> profile = RawProfile(*said.profile);
    orientation = TiffOrientation(WithoutExifId(profile));
  }
  if (orientation) return *orientation;
  return said.xmp ? XmpOrientation(*said.xmp) : 1;
}

}  // namespace pinfeed
