// SPDX-License-Identifier: Apache-2.0
// Combines images into one PNG. In: uint8 pixels, height x width x channels. Out: a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pinfeed {

// Purpose: a grid of equally large tiles, about square, with dark lines between them. Owns its pixels.
// Copyable. Threads: one. Errors: Write throws ToolError.
class ContactSheet {
 public:
  // Preconditions: count >= 1; 1, 3 or 4 channels.
  ContactSheet(size_t count, size_t height, size_t width, size_t channels);

  // Copies one tile. Preconditions: index < count; `pixels` has height * width * channels bytes.
  void Place(size_t index, const uint8_t* pixels);
  void Write(const std::string& path) const;

  size_t columns() const { return columns_; }
  size_t rows() const { return rows_; }

 private:
  const size_t columns_;
  const size_t rows_;
  const size_t height_;
  const size_t width_;
  const size_t channels_;
  const size_t sheet_width_;
  const size_t sheet_height_;
  std::vector<uint8_t> pixels_;  // RGB
};

}  // namespace pinfeed
