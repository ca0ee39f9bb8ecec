// SPDX-License-Identifier: Apache-2.0
#include "server/storage/storage.h"

#include "common/base/quote.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {

Status RandomAccessFile::ReadAll(uint64_t max_bytes, std::vector<std::byte>& out) const {
  if (size_ == 0) return DataLoss("read " + QuotePath(path_) + ": the file is empty");
  if (size_ > max_bytes) {
    return DataLoss("read " + QuotePath(path_) + ": its " + std::to_string(size_) +
                    " bytes exceed the limit of " + std::to_string(max_bytes));
  }
  if (const Status memory = ResizeForSample(size_, out); !memory.ok())
    return memory.WithContext("read " + QuotePath(path_));
  return ReadAt(0, out);
}

std::string RandomAccessFile::ReadText(uint64_t offset, size_t wanted) const {
  return "read " + std::to_string(wanted) + " bytes at offset " + std::to_string(offset) + " of " +
         QuotePath(path_);
}

Status RandomAccessFile::Truncated(uint64_t offset, size_t wanted, size_t got) const {
  return DataLoss(ReadText(offset, wanted) + ": the file ends after " + std::to_string(got) +
                  " of them; it had " + std::to_string(size_) + " bytes when it was opened");
}

Result<NodeId> Location::List(std::string_view below, const Visit& visit) const {
  ASSIGN_OR_RETURN(const Listing listing, List(below, visit, nullptr));
  return listing.id;
}

std::string Location::FullPath(std::string_view below) const {
  std::string full = path();
  if (!below.empty()) full.append(full == "/" ? "" : "/").append(below);
  return full;
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty()) path += '/';
  return path.append(name);
}

}  // namespace pinfeed
