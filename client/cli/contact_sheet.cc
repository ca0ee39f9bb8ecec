// SPDX-License-Identifier: Apache-2.0
#include "client/cli/contact_sheet.h"

#include <spng.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "client/cli/command.h"

namespace pinfeed {
namespace {

constexpr size_t kGap = 2;
constexpr uint8_t kGapShade = 24;
constexpr size_t kRgb = 3;

void Check(int code, const std::string& path) {
  if (code != 0) throw ToolError("write " + path + ": " + spng_strerror(code));
}

}  // namespace

ContactSheet::ContactSheet(size_t count, size_t height, size_t width, size_t channels)
    : columns_(static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(count))))),
      rows_((count + columns_ - 1) / columns_),
      height_(height),
      width_(width),
      channels_(channels),
      sheet_width_(columns_ * (width + kGap) + kGap),
      sheet_height_(rows_ * (height + kGap) + kGap),
      pixels_(sheet_width_ * sheet_height_ * kRgb, kGapShade) {}

void ContactSheet::Place(size_t index, const uint8_t* pixels) {
  const size_t left = kGap + index % columns_ * (width_ + kGap);
  const size_t top = kGap + index / columns_ * (height_ + kGap);
  for (size_t y = 0; y < height_; ++y) {
    uint8_t* out = &pixels_[((top + y) * sheet_width_ + left) * kRgb];
    for (size_t x = 0; x < width_; ++x, pixels += channels_, out += kRgb) {
      for (size_t c = 0; c < kRgb; ++c) out[c] = pixels[channels_ < kRgb ? 0 : c];
    }
  }
}

void ContactSheet::Write(const std::string& path) const {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
  if (file == nullptr) throw ToolError("write " + path + ": " + std::strerror(errno));
  const std::unique_ptr<spng_ctx, void (*)(spng_ctx*)> png(spng_ctx_new(SPNG_CTX_ENCODER), spng_ctx_free);
  if (png == nullptr) throw ToolError("write " + path + ": no memory for the PNG encoder");
  Check(spng_set_png_file(png.get(), file.get()), path);
  spng_ihdr header{};
  header.width = static_cast<uint32_t>(sheet_width_);
  header.height = static_cast<uint32_t>(sheet_height_);
  header.bit_depth = 8;
  header.color_type = SPNG_COLOR_TYPE_TRUECOLOR;
  Check(spng_set_ihdr(png.get(), &header), path);
  const int encoded =
      spng_encode_image(png.get(), pixels_.data(), pixels_.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
  const bool failed = std::ferror(file.get()) != 0;
  const int written = failed ? errno : 0;
  if (std::fclose(file.release()) == 0 && !failed) return Check(encoded, path);
  const std::string reason = std::strerror(failed ? written : errno);
  std::error_code ignored;  // half a picture is of no use to anybody
  if (std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored)))
    std::filesystem::remove(path, ignored);
  throw ToolError("write " + path + ": " + reason);
}

}  // namespace pinfeed
