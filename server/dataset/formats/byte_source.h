// SPDX-License-Identifier: Apache-2.0
// Reads a text file front to back. In: a file. Out: its bytes without a byte order mark, and their hash.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "server/dataset/fingerprint.h"
#include "server/storage/storage.h"

namespace pinfeed {

// Purpose: reads a file from its start to its end, a window at a time. Borrows the file. Threads: one.
// Errors: those of reading.
class ByteSource {
 public:
  explicit ByteSource(const RandomAccessFile& file) : file_(file) {}

  // Returns the bytes that come next, some of them; empty at the end. Valid until the next call.
  Result<std::string_view> Next() {
    if (position_ == window_.size() && offset_ < file_.size()) {
      window_.resize(std::min<uint64_t>(kWindowBytes, file_.size() - offset_));
      RETURN_IF_ERROR(file_.ReadAt(offset_, std::as_writable_bytes(std::span(window_))));
      hash_ = HashWords(hash_, window_);
      position_ = offset_ == 0 && window_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
      offset_ += window_.size();
    }
    return std::string_view(window_).substr(position_);
  }
  // Passes over so many of what Next returned.
  void Skip(size_t bytes) { position_ += bytes; }
  const RandomAccessFile& file() const { return file_; }
  uint64_t hash() const { return hash_; }

 private:
  static constexpr size_t kWindowBytes = size_t{1} << 20;
  static constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // in UTF-8

  const RandomAccessFile& file_;
  std::string window_;
  size_t position_ = 0;
  uint64_t offset_ = 0;  // the end of the window in the file
  uint64_t hash_ = 0;    // of the bytes up to there
};

}  // namespace pinfeed
