// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/image/image_fixture.h"

#include <jpeglib.h>
#include <malloc.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

namespace pinfeed {

std::vector<std::byte> FileBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::vector<std::byte> MakeJpeg(const JpegOptions& options, uint32_t seed) {
  jpeg_compress_struct cinfo{};
  jpeg_error_mgr error{};
  cinfo.err = jpeg_std_error(&error);  // whose error_exit ends the test program
  jpeg_create_compress(&cinfo);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&cinfo, &memory, &bytes);
  cinfo.image_width = static_cast<JDIMENSION>(options.width);
  cinfo.image_height = static_cast<JDIMENSION>(options.height);
  const bool grey = options.horizontal == 0;
  cinfo.input_components = grey ? 1 : options.cmyk ? 4 : 3;
  cinfo.in_color_space = grey ? JCS_GRAYSCALE : options.cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&cinfo);
  jpeg_set_quality(&cinfo, options.quality, TRUE);
  if (!grey) {
    cinfo.comp_info[0].h_samp_factor = options.horizontal;
    cinfo.comp_info[0].v_samp_factor = options.vertical;
  }
  const jpeg_scan_info scans[3] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
  if (options.separate_scans) {
    cinfo.scan_info = scans;
    cinfo.num_scans = 3;
  }
  if (options.progressive) jpeg_simple_progression(&cinfo);
  cinfo.restart_interval = static_cast<unsigned>(options.restart_interval);
  jpeg_start_compress(&cinfo, TRUE);
  std::minstd_rand random(seed + 1);
  const double phase = seed % 97;
  std::vector<uint8_t> row(static_cast<size_t>(options.width * cinfo.input_components));
  while (cinfo.next_scanline < cinfo.image_height) {
    const double y = cinfo.next_scanline;
    for (size_t i = 0; i < row.size(); ++i) {
      const auto c = static_cast<double>(i % static_cast<size_t>(cinfo.input_components));
      const auto x = static_cast<double>(i / static_cast<size_t>(cinfo.input_components));
      double value = 127 + 110 * std::sin(x / 19 + c + phase) * std::cos(y / (27 + 4 * c));
      if (std::fmod(x / 37 + y / 29, 2) < 1) value /= 2;
      row[i] = static_cast<uint8_t>(value + static_cast<double>(random() % 12));
    }
    uint8_t* line = row.data();
    jpeg_write_scanlines(&cinfo, &line, 1);
  }
  jpeg_finish_compress(&cinfo);
  jpeg_destroy_compress(&cinfo);
  std::vector<std::byte> file(bytes);
  std::memcpy(file.data(), memory, bytes);
  std::free(memory);
  return file;
}

std::vector<uint8_t> Pixels(const ImageView& view) {
  std::vector<uint8_t> pixels;
  for (int32_t y = 0; y < view.height; ++y) {
    pixels.insert(pixels.end(), view.Row(y), view.Row(y) + 3 * static_cast<size_t>(view.width));
  }
  return pixels;
}

size_t AllocatedBytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

MemoryDataset::MemoryDataset(std::vector<Field> fields,
                             std::vector<std::vector<std::vector<std::byte>>> contents)
    : contents_(std::move(contents)) {
  info_.format = "memory";
  info_.path = "/memory";
  info_.samples = contents_.size();
  info_.fingerprint = "0123456789abcdef";
  info_.fields = std::move(fields);
}

Status MemoryDataset::ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const {
  const std::vector<std::byte>& bytes = contents_[id][field];
  if (bytes.size() != out.size()) return DataLoss("read " + Describe(id) + ": wrong size");
  if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return OkStatus();
}

Status MemoryDataset::ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const {
  out.assign(contents_[id][field].begin(), contents_[id][field].end());
  return OkStatus();
}

std::vector<std::byte> Turned(const std::vector<std::byte>& file, int orientation) {
  const std::string segment = std::string(
                                  "\xFF\xE1\0\x22"
                                  "Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0",
                                  29) +
                              static_cast<char>(orientation) + std::string(6, '\0');
  std::vector<std::byte> turned(file.begin(), file.begin() + 2);
  for (const char c : segment) turned.push_back(static_cast<std::byte>(c));
  turned.insert(turned.end(), file.begin() + 2, file.end());
  return turned;
}

}  // namespace pinfeed
