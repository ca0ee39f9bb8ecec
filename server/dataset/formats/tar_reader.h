// SPDX-License-Identifier: Apache-2.0
// The files in a tar archive. In: an archive. Out: the name and place of each file, all checked. Formats:
// POSIX.1-2017 pax (ustar and pax headers), and GNU tar's long names and large sizes,
// https://www.gnu.org/software/tar/manual/html_node/Standard.html.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/result.h"
#include "server/storage/storage.h"

namespace pinfeed {

struct TarMember {
  std::string name;     // raw bytes without NUL, not empty
  uint64_t offset = 0;  // of its bytes in the archive
  uint64_t size = 0;
};

// Purpose: reads the headers of an archive from its start to its end. Borrows the archive. Threads: one at a
// time. Errors: kDataLoss for an archive that is damaged or cut off, kInvalidArgument for one with contents
// that are no files (links, devices, sparse files), both with path and offset; those of the storage.
class TarReader {
 public:
  static constexpr uint64_t kMaxNameBytes = 4096;  // PATH_MAX
  static constexpr uint64_t kMaxPaxBytes = uint64_t{1} << 20;

  explicit TarReader(const RandomAccessFile& archive) : archive_(archive) {}

  // Returns the next file; directories are passed over. Empty: the archive has ended as it should.
  Result<std::optional<TarMember>> Next();
  // Reads the start of the file that Next has returned last. Precondition: out.size() <= member.size.
  Status ReadStart(const TarMember& member, std::span<std::byte> out) { return ReadAt(member.offset, out); }

 private:
  static constexpr uint64_t kBlockBytes = 512;
  using Block = std::span<const std::byte, kBlockBytes>;

  // What extended headers say of the member behind them.
  struct Extended {
    std::optional<std::string> name;
    std::optional<uint64_t> size;
  };

  // Returns the block at next_, valid until the next call.
  Result<Block> ReadBlock();
  // Reads the data of an extended header, which lie at next_, and passes over them.
  Result<std::string> ReadText(uint64_t bytes, uint64_t max_bytes);
  // Reads bytes behind the block that ReadBlock returned last.
  Status ReadAt(uint64_t offset, std::span<std::byte> out);
  Status ReadPax(const std::string& text, Extended& extended) const;
  // Passes over `bytes` of data and their padding.
  Status Skip(uint64_t bytes);
  Status CheckNothingFollows();
  Status Damaged(const std::string& what) const;
  Status Refused(const std::string& what) const;

  const RandomAccessFile& archive_;
  uint64_t next_ = 0;    // of the header that is read next
  uint64_t header_ = 0;  // of the header that is being read, for messages
  std::array<std::byte, 8 * kBlockBytes> window_;
  uint64_t window_offset_ = 0;
  uint64_t window_bytes_ = 0;
};

}  // namespace pinfeed
