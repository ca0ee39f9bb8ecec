// SPDX-License-Identifier: Apache-2.0
// What the tests of stage 2 share: files, JPEG images made here, and a dataset of files and tensors in
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "server/dataset/dataset.h"
#include "server/image/decode.h"
#include "server/image/image.h"

namespace pinfeed {

// The whole file; an empty vector if it cannot be read.
std::vector<std::byte> FileBytes(const std::filesystem::path& path);

struct JpegOptions {
  int width = 0;
  int height = 0;
  int horizontal = 2;  // chroma sampling: 2 x 2 is 4:2:0; 0: a grey image
  int vertical = 2;
  bool progressive = false;
  bool separate_scans = false;  // sequential, one scan a component
  int restart_interval = 0;     // MCUs; 0: none
  int quality = 90;
  bool cmyk = false;
};
// A JPEG file of edges, waves and noise.
std::vector<std::byte> MakeJpeg(const JpegOptions& options, uint32_t seed);

// Decodes the whole image as displayed. The view is valid until `decoder` is used again.
inline Result<ImageView> DecodeImage(std::span<const std::byte> file, ImageDecoder& decoder) {
  ASSIGN_OR_RETURN(const ImageSize size, decoder.Open(file));
  return decoder.Decode({0, 0, size.width, size.height});
}

// The pixels of a view, rows packed.
std::vector<uint8_t> Pixels(const ImageView& view);

// Bytes that this process has allocated now.
size_t AllocatedBytes();

// `file` with an EXIF segment that says `orientation`.
std::vector<std::byte> Turned(const std::vector<std::byte>& file, int orientation);

// Purpose: samples in memory. contents[sample][field] are the bytes of each field; a tensor of another size
// than its field cannot be read.
class MemoryDataset final : public Dataset {
 public:
  MemoryDataset(std::vector<Field> fields, std::vector<std::vector<std::vector<std::byte>>> contents);
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t id, size_t field, std::span<std::byte> out) const override;
  Status ReadBytes(uint64_t id, size_t field, std::vector<std::byte>& out) const override;
  std::string Describe(uint64_t id) const override { return "memory/" + std::to_string(id); }

 private:
  DatasetInfo info_;
  const std::vector<std::vector<std::vector<std::byte>>> contents_;
};

inline Field EncodedField(std::string name) {
  return {{std::move(name), DType::kUnspecified, {}}, FieldKind::kEncodedImage};
}
inline Field TensorField(std::string name, DType dtype, std::vector<int64_t> shape) {
  return {{std::move(name), dtype, std::move(shape)}, FieldKind::kTensor};
}

}  // namespace pinfeed
