// SPDX-License-Identifier: Apache-2.0
// A part of a file, as a file. In: an open file and a range of its bytes. Out: reads of the range.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "server/storage/storage.h"

namespace pinfeed {

// Purpose: one member of an archive. Owns the file. Threads and errors: as RandomAccessFile; kDataLoss if the
// archive was written to since it was opened. Messages count from the archive's start.
class FileRange final : public RandomAccessFile {
 public:
  // Precondition: the range lies within the file.
  FileRange(std::unique_ptr<const RandomAccessFile> file, uint64_t offset, uint64_t bytes)
      : RandomAccessFile(file->path(), bytes), file_(std::move(file)), offset_(offset) {
    PF_CHECK(offset <= file_->size() && bytes <= file_->size() - offset, "a range lies within its file");
  }

  std::optional<FileVersion> version() const override {
    std::optional<FileVersion> version = file_->version();
    if (version) {
      version->offset = offset_;
      version->size = size();
    }
    return version;
  }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    PF_CHECK(offset <= size() && out.size() <= size() - offset, "a read lies within the range");
    RETURN_IF_ERROR(file_->ReadAt(offset_ + offset, out));
    if (file_->HasSameContents(Asked::kHost)) return OkStatus();
    return DataLoss(
        ReadText(offset_ + offset, out.size()) +
        ": the file was written to meanwhile, so that others may lie there; open the dataset again");
  }
  Prefetched Prefetch(uint64_t offset, uint64_t bytes) const override {
    return file_->Prefetch(offset_ + offset, bytes);
  }

 private:
  const std::unique_ptr<const RandomAccessFile> file_;
  const uint64_t offset_;
};

}  // namespace pinfeed
