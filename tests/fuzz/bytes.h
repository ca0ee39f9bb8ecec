// SPDX-License-Identifier: Apache-2.0
// The input of a fuzz target as a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "server/storage/storage.h"

namespace pinfeed {

class Bytes final : public RandomAccessFile {
 public:
  explicit Bytes(std::span<const uint8_t> data) : RandomAccessFile("/fuzz", data.size()), data_(data) {}
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    PF_CHECK(offset + out.size() <= data_.size(), "reads stay within the file");
    std::memcpy(out.data(), data_.data() + offset, out.size());
    return OkStatus();
  }

 private:
  const std::span<const uint8_t> data_;
};

}  // namespace pinfeed
