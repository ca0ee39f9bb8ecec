// SPDX-License-Identifier: Apache-2.0
#include "server/image/png_chunks.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "common/base/ascii_case.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {
namespace {

constexpr size_t kSignatureBytes = 8;
constexpr size_t kHeaderBytes = 13;  // of IHDR's data
constexpr size_t kMaxColours = 256;
constexpr size_t kMaxChunks = size_t{1} << 20;  // 32 MiB of PngChunk; a file may consist of empty ones

uint32_t BigEndian32(const std::byte* at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<uint32_t>(at[i]);
  return value;
}

// Whether Pillow accepts the chunk name: four characters that match \w.
bool IsChunkId(const std::byte* at) {
  return std::all_of(at, at + 4, [](std::byte b) {
    const char c = std::to_integer<char>(b);
    return IsAsciiAlphanumeric(c) || c == '_';
  });
}

uint32_t Checksum(std::span<const std::byte> id_and_data) {
  return static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(id_and_data.data()), id_and_data.size()));
}

bool ChecksumIsRight(const PngChunk& chunk) {
  return chunk.whole.size() == chunk.data.size() + 12 &&
         Checksum(chunk.whole.subspan(4, 4 + chunk.data.size())) ==
             BigEndian32(chunk.whole.data() + 8 + chunk.data.size());
}

void Append32(std::vector<std::byte>& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::byte>(value >> shift));
}

void AppendChunk(std::vector<std::byte>& out, const char (&id)[5], std::span<const std::byte> data) {
  Append32(out, static_cast<uint32_t>(data.size()));
  const size_t begin = out.size();
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<std::byte>(id[i]));
  out.insert(out.end(), data.begin(), data.end());
  Append32(out, Checksum(std::span(out).subspan(begin)));
}

}  // namespace

bool PngChunk::Is(const char (&id)[5]) const {
  return std::memcmp(whole.data() + 4, id, 4) == 0;
}

Status PngChunks::Scan(std::span<const std::byte> file) {
  chunks_.clear();
  bool pixels = false;
  bool after_pixels = false;
  pixels_begin_ = pixels_end_ = 0;
  for (size_t at = kSignatureBytes; file.size() - at >= 8;) {
    if (!IsChunkId(file.data() + at + 4)) break;
    const size_t length = BigEndian32(file.data() + at);
    const size_t available = file.size() - at - 8;
    const size_t trailer = length > available ? 0 : std::min<size_t>(4, available - length);
    const PngChunk chunk{file.subspan(at, std::min(file.size() - at, 8 + length + trailer)),
                         file.subspan(at + 8, std::min(length, available))};
    if (chunk.Is("IEND")) break;
    if (chunk.Is("IHDR") && !chunks_.empty()) return DataLoss("PNG: it has two headers");
    if (chunks_.size() == kMaxChunks)
      return ResourceExhausted("PNG: it has more than " + std::to_string(kMaxChunks) + " chunks");
    const bool is_pixels = chunk.Is("IDAT");
    if (length > available || (trailer < 4 && (is_pixels || !pixels)))
      return DataLoss("PNG file is truncated");
    if (is_pixels && !pixels) pixels_begin_ = chunks_.size();
    pixels |= is_pixels;
    after_pixels |= pixels && !is_pixels;
    chunks_.push_back(chunk);
    if (is_pixels && !after_pixels) pixels_end_ = chunks_.size();
    at += chunk.whole.size();
  }
  if (!pixels) pixels_begin_ = pixels_end_ = chunks_.size();
  return OkStatus();
}

bool PngChunks::HasPalette() const {
  return !chunks_.empty() && chunks_[0].Is("IHDR") && chunks_[0].data.size() == kHeaderBytes &&
         chunks_[0].data[9] == std::byte{3};
}

size_t PngChunks::PaletteColours() const {
  return std::min(kMaxColours, size_t{1} << std::min(8, std::to_integer<int>(chunks_[0].data[8])));
}

const PngChunk* PngChunks::Palette() const {
  for (size_t i = pixels_begin_; i-- > 0;) {
    if (chunks_[i].Is("PLTE")) return &chunks_[i];
  }
  return nullptr;
}

bool PngChunks::PaletteDiffers() const {
  if (!HasPalette()) return false;
  const PngChunk* const palette = Palette();
  return palette == nullptr || palette->data.size() != 3 * PaletteColours();
}

Status PngChunks::Rewrite(std::vector<std::byte>& out) const {
  static constexpr std::string_view kSignature("\x89PNG\r\n\x1A\n", kSignatureBytes);
  const auto signature = std::as_bytes(std::span(kSignature));
  size_t bytes = kSignatureBytes + 3 * (kHeaderBytes + 12 + 3 * kMaxColours);  // with header, palette and end
  for (size_t i = pixels_begin_; i < pixels_end_; ++i) bytes += chunks_[i].whole.size();
  RETURN_IF_ERROR(ResizeForSample(bytes, out));
  out.assign(signature.begin(), signature.end());
  for (size_t i = 0; i < pixels_begin_; ++i) {
    if (ChecksumIsRight(chunks_[i])) continue;
    const std::string id(reinterpret_cast<const char*>(chunks_[i].whole.data()) + 4, 4);
    return DataLoss("PNG: the checksum of chunk " + id + " is wrong");
  }
  const auto append = [&](const PngChunk& chunk) {
    out.insert(out.end(), chunk.whole.begin(), chunk.whole.end());
  };
  if (!chunks_.empty() && chunks_[0].Is("IHDR")) append(chunks_[0]);
  if (HasPalette()) {
    std::array<std::byte, 3 * kMaxColours> colours{};
    const size_t needed = 3 * PaletteColours();
    if (const PngChunk* const palette = Palette(); palette != nullptr) {
      const size_t given = palette->data.size() / 3 * 3;
      if (given > colours.size())
        return DataLoss("PNG: its palette has " + std::to_string(given / 3) +
                        " colours; at most 256 are allowed");
      std::copy_n(palette->data.begin(), std::min(given, needed), colours.begin());
    }
    AppendChunk(out, "PLTE", std::span(colours).first(needed));
  }
  for (size_t i = pixels_begin_; i < pixels_end_; ++i) append(chunks_[i]);
  AppendChunk(out, "IEND", {});
  return OkStatus();
}

}  // namespace pinfeed
